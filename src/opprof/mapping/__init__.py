"""Kernel name and scopes to operator family, by versioned and hashed tables."""

from opprof.mapping.check import CheckReport, Finding, check_table
from opprof.mapping.classify import MappingTable, RuleHit
from opprof.mapping.families import (
    FAMILIES,
    FAMILY_PRIORITY,
    GRAPH_REPLAY_OPAQUE,
    OTHER,
    UNCLASSIFIED,
)
from opprof.mapping.table import BUILTIN_VERSIONS, load_table, load_table_file

__all__ = [
    "BUILTIN_VERSIONS",
    "FAMILIES",
    "FAMILY_PRIORITY",
    "GRAPH_REPLAY_OPAQUE",
    "OTHER",
    "UNCLASSIFIED",
    "CheckReport",
    "Finding",
    "MappingTable",
    "RuleHit",
    "check_table",
    "load_table",
    "load_table_file",
]
