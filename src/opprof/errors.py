"""The error tree of OpProf: every failure that a user can meet has one class and one stable code.

::

    OpprofError                      code   exit
    ├── InputError                   E-INPUT      2   unusable arguments or input
    │   └── SchemaError              E-SCHEMA     2   input that does not fit its schema
    ├── IntegrityError               E-INTEGRITY  1   a gate or a check failed
    ├── EnvironmentFailure           E-ENV        1   server, GPU, disk, missing extra
    └── StateConflict                E-STATE      2   something is already there, or has changed

Messages are one sentence with file, line or offset, and reason. The command line prints them
without a traceback and exits with ``exit_code`` (contract, section 7).
"""

from __future__ import annotations

import errno
import os


class OpprofError(Exception):
    """Base of every error that OpProf raises on purpose.

    ``where`` is the place in the input (a file, with ``line`` counted from 1 or a byte ``offset``).
    """

    code = "E-OPPROF"
    exit_code = 1

    def __init__(
        self,
        reason: str,
        *,
        path: str | os.PathLike[str] | None = None,
        line: int | None = None,
        offset: int | None = None,
    ) -> None:
        self.reason = reason
        self.path = None if path is None else os.fspath(path)
        self.line = line
        self.offset = offset
        super().__init__(self.__str__())

    @property
    def where(self) -> str:
        """The place of the fault as ``file:line`` or ``file @ byte N``; empty when unknown."""
        parts = [self.path or ""]
        if self.line is not None:
            parts.append(f":{self.line}" if self.path else f"line {self.line}")
        elif self.offset is not None:
            parts.append(f" @ byte {self.offset}" if self.path else f"byte {self.offset}")
        return "".join(parts)

    def __str__(self) -> str:
        where = self.where
        return f"{where}: {self.reason}" if where else self.reason

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross process borders (runs are analysed in parallel), keyword arguments included.
        return (_rebuild, (type(self), self.reason, self.path, self.line, self.offset))


def _rebuild(
    cls: type[OpprofError], reason: str, path: str | None, line: int | None, offset: int | None
) -> OpprofError:
    return cls(reason, path=path, line=line, offset=offset)


class InputError(OpprofError):
    """Arguments or input that cannot be used."""

    code = "E-INPUT"
    exit_code = 2


class SchemaError(InputError):
    """Input that was read but does not fit its schema (wrong type, unknown key, out of range)."""

    code = "E-SCHEMA"


class IntegrityError(OpprofError):
    """A gate or check failed: the data are readable but must not be believed."""

    code = "E-INTEGRITY"
    exit_code = 1


class EnvironmentFailure(OpprofError):
    """The surroundings failed: server unreachable, disk full, GPU busy, optional extra missing."""

    code = "E-ENV"
    exit_code = 1


class StateConflict(OpprofError):
    """What should be written exists already, or what was frozen has changed."""

    code = "E-STATE"
    exit_code = 2


def refused(error: OSError) -> OpprofError:
    """Return what the kernel refused as an error of ours, where nobody below had a better word.

    A name that is too long, or a way that leads through a file, is a bad argument; a folder that
    may not be read and a full disk are the surroundings.
    """
    bad = error.errno in (errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR)
    kind = InputError if bad else EnvironmentFailure
    place = error.filename if isinstance(error.filename, str | os.PathLike) else None
    return kind(error.strerror or str(error), path=place)
