"""The window-stratified test: by hand, against scipy, against the written-out convolution."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from opprof.statistics.draws import Stream
from opprof.statistics.permutation import WindowSteps, permutation_test


def steps(*rows: tuple[float, ...]) -> WindowSteps:
    """Rows of (family times ..., total)."""
    table = np.array(rows, float)
    return WindowSteps(table[:, :-1], table[:, -1])


def random_windows(seed: int, count: int, windows: int, shift: float = 0.0) -> list[WindowSteps]:
    found = []
    for window in range(windows):
        drawn = Stream(seed, str(window)).below(1000, count * 3).reshape(count, 3) + 1.0
        drawn[:, 0] += shift
        found.append(WindowSteps(drawn, drawn.sum(axis=1)))
    return found


def test_one_window_of_two_steps_each_by_hand() -> None:
    # Totals of 10: shares of a are .9 .8 | .1 .2, so the lead a-b is .8 .6 | -.8 -.6 and the
    # observed difference 1.4. Of six labellings two reach it in size, one in direction.
    p, q = [steps((9, 1, 10), (8, 2, 10))], [steps((1, 9, 10), (2, 8, 10))]
    found = permutation_test(p, q, permutations=6000, stream=Stream(1, "hand"))
    assert found.pairs == ((0, 1),)
    assert found.observed.tolist() == pytest.approx([1.4])
    assert found.labellings == 6
    assert found.exact_p is not None
    assert found.exact_p.tolist() == [2 / 6]
    assert found.p_value[0] == (found.reached[0] + 1) / 6001
    assert found.p_value[0] == pytest.approx(1 / 3, abs=0.03)
    assert found.reached_one_sided[0] / 6000 == pytest.approx(1 / 6, abs=0.03)


def test_two_windows_convolve() -> None:
    p = [steps((9, 1, 10), (8, 2, 10)), steps((7, 3, 10), (6, 4, 10))]
    q = [steps((1, 9, 10), (2, 8, 10)), steps((5, 5, 10), (5, 5, 10))]
    found = permutation_test(p, q, permutations=20_000, stream=Stream(1, "two"))
    joint = []
    for first in combinations(range(4), 2):
        for second in combinations(range(4), 2):
            leads = []
            for labels, window in ((first, 0), (second, 1)):
                table = np.concatenate([p[window].family_ns, q[window].family_ns])
                mine = table[list(labels)].sum(axis=0) / 20
                rest = (table.sum(axis=0) - table[list(labels)].sum(axis=0)) / 20
                leads.append((mine - rest)[0] - (mine - rest)[1])
            joint.append(sum(leads) / 2)
    observed = joint[0]
    assert found.observed[0] == pytest.approx(observed)
    exact = np.mean(np.abs(joint) >= abs(observed) - 1e-12)
    assert found.exact_p is not None
    assert found.exact_p[0] == exact
    assert found.labellings == 36
    assert found.p_value[0] == pytest.approx(exact, abs=4 * np.sqrt(exact * (1 - exact) / 20_000))


def test_scipy_agrees_on_one_window_of_the_design() -> None:
    p, q = random_windows(1, 8, 1, shift=350), random_windows(2, 8, 1)
    found = permutation_test(p, q, permutations=2000, stream=Stream(1, "scipy"))
    table = [np.column_stack([w.family_ns, w.total_ns]) for w in (p[0], q[0])]

    def lead(mine: np.ndarray, theirs: np.ndarray, axis: int) -> np.ndarray:
        def of(rows: np.ndarray, family: int) -> np.ndarray:
            return table_all[rows, family].sum(axis=axis) / table_all[rows, 3].sum(axis=axis)

        table_all = np.concatenate(table)
        a, b = 0, 1
        return of(mine, a) - of(mine, b) - of(theirs, a) + of(theirs, b)

    reference = stats.permutation_test(
        (np.arange(8), np.arange(8, 16)), lead, vectorized=True, n_resamples=np.inf
    )
    assert found.observed[0] == pytest.approx(reference.statistic)
    assert found.exact_p is not None
    # scipy doubles the smaller tail; labellings come in mirrored pairs, so the two are the same.
    assert found.exact_p[0] == pytest.approx(reference.pvalue)


def test_exact_and_drawn_values_agree_for_every_pair() -> None:
    p, q = random_windows(3, 8, 2, shift=120), random_windows(4, 8, 2)
    found = permutation_test(p, q, permutations=50_000, stream=Stream(1, "agree"))
    assert found.labellings == 12_870**2
    assert found.exact_p is not None
    error = np.sqrt(found.exact_p * (1 - found.exact_p) / 50_000)
    assert (np.abs(found.reached / 50_000 - found.exact_p) <= 4.5 * error + 1e-4).all()
    assert (found.reached_one_sided <= found.reached).all()


def test_many_steps_are_drawn_instead_of_enumerated() -> None:
    p, q = random_windows(5, 14, 2), random_windows(6, 14, 2)
    found = permutation_test(p, q, permutations=3000, stream=Stream(1, "drawn"))
    assert found.exact_p is None
    assert found.labellings is None
    few = permutation_test(
        [WindowSteps(w.family_ns[:3], w.total_ns[:3]) for w in p],
        [WindowSteps(w.family_ns[:3], w.total_ns[:3]) for w in q],
        permutations=3000,
        stream=Stream(1, "few"),
    )
    assert few.labellings == 400
    assert ((found.p_value > 0) & (found.p_value <= 1)).all()


def test_random_labels_are_uniform() -> None:
    from opprof.statistics.permutation import _random_labels

    labels = _random_labels(5, 2, 20_000, Stream(1, "labels"))
    assert (labels.sum(axis=0) == 2).all()
    codes, counts = np.unique((1 << np.arange(5)) @ labels, return_counts=True)
    assert len(codes) == 10
    assert float(((counts - 2000) ** 2 / 2000).sum()) < 27.9  # chi-square, 9 df, 99.9 %


def test_families_without_time_are_never_rejected() -> None:
    p = [steps(*[(5.0 + i, 0, 0, 10) for i in range(8)])] * 2
    q = [steps(*[(1.0 + i / 4, 0, 0, 10) for i in range(8)])] * 2
    found = permutation_test(p, q, permutations=999, stream=Stream(1, "zero"))
    by_pair = dict(zip(found.pairs, found.p_value.tolist(), strict=True))
    assert by_pair[1, 2] == 1.0
    assert by_pair[0, 1] == pytest.approx(0.001)
    assert found.exact_p is not None
    assert found.exact_p[found.pairs.index((0, 1))] == pytest.approx(2 / 12_870**2)


def test_the_pooled_statistic_weights_windows_by_their_time() -> None:
    # The second window is a thousand times longer, and only the first tells the patterns apart.
    p = [
        steps(*[(9, 1, 10)] * 8),
        steps(*[(5000 + 300 * i, 5000 - 300 * i, 10_000) for i in range(8)]),
    ]
    q = [
        steps(*[(1, 9, 10)] * 8),
        steps(*[(5000 + 300 * i, 5000 - 300 * i, 10_000) for i in range(8)]),
    ]
    found = permutation_test(p, q, permutations=2000, stream=Stream(1, "pooled"))
    assert found.reached[0] < 10
    assert found.reached_pooled[0] > 200


def test_p_does_not_depend_on_which_pattern_is_first() -> None:
    p, q = random_windows(7, 8, 2, shift=80), random_windows(8, 8, 2)
    one = permutation_test(p, q, permutations=100, stream=Stream(1, "x"))
    other = permutation_test(q, p, permutations=100, stream=Stream(1, "x"))
    assert one.observed.tolist() == pytest.approx((-other.observed).tolist())
    assert one.exact_p is not None
    assert other.exact_p is not None
    assert one.exact_p.tolist() == pytest.approx(other.exact_p.tolist())


@pytest.mark.parametrize(
    ("p", "q"),
    [
        ([], []),
        ([steps((1, 1))], []),
        ([steps((1, 1))], [steps((0, 0))]),
        ([WindowSteps(np.zeros((0, 1)), np.zeros(0))], [steps((1, 1))]),
    ],
)
def test_what_makes_no_sense_is_refused(p: list[WindowSteps], q: list[WindowSteps]) -> None:
    with pytest.raises(ValueError, match="window"):
        permutation_test(p, q, permutations=10, stream=Stream(1))


def test_pairs_of_steps_are_exchanged_together_and_counted_by_hand() -> None:
    from itertools import combinations

    from opprof.statistics.sensitivity import blocked_p, in_pairs

    rng = np.random.default_rng(5)
    p, q = ([_random_window(rng, 4) for _ in range(2)] for _ in range(2))
    joined = in_pairs(p[0])
    assert joined.total_ns.tolist() == [sum(p[0].total_ns[:2]), sum(p[0].total_ns[2:])]
    odd = WindowSteps(p[0].family_ns[:3], p[0].total_ns[:3])
    assert in_pairs(odd).total_ns.tolist() == [sum(p[0].total_ns[:2]), p[0].total_ns[2]]
    found = blocked_p(p, q)
    assert found is not None

    def lead(rows: list[tuple[np.ndarray, float]]) -> float:
        return float(sum(r[0][0] - r[0][1] for r in rows) / sum(r[1] for r in rows))

    tables, observed = [], 0.0
    for mine, theirs in zip(p, q, strict=True):
        blocks = []
        for side in (mine, theirs):
            for at in (0, 2):
                rows = slice(at, at + 2)
                blocks.append((side.family_ns[rows].sum(axis=0), float(side.total_ns[rows].sum())))
        observed += lead(blocks[:2]) - lead(blocks[2:])
        tables.append(
            [
                lead([blocks[i] for i in chosen])
                - lead([blocks[i] for i in range(4) if i not in chosen])
                for chosen in combinations(range(4), 2)
            ]
        )
    reached = sum(abs(a + b) >= abs(observed) - 2e-12 for a in tables[0] for b in tables[1])
    assert found[0] == pytest.approx(reached / 36)


def _random_window(rng: np.random.Generator, steps: int) -> WindowSteps:
    rows = rng.uniform(1, 10, (steps, 2))
    return WindowSteps(rows, rows.sum(axis=1) + rng.uniform(0, 5, steps))


def test_windows_as_the_only_replicates_are_welchs_test() -> None:
    from opprof.statistics.sensitivity import windows_p

    stats = pytest.importorskip("scipy.stats")
    for p, q in (
        ([0.10, 0.13], [-0.07, -0.02]),
        ([0.11, 0.1], [0.1, 0.3]),
        ([1.0, 2.0, 4.0], [0.5, 0.6]),
    ):
        assert windows_p(p, q) == pytest.approx(stats.ttest_ind(p, q, equal_var=False).pvalue)
    assert windows_p([0.1], [0.2, 0.3]) is None
    assert windows_p([0.1, 0.1], [0.1, 0.1]) == 1.0
    assert windows_p([0.1, 0.1], [0.2, 0.2]) == 0.0
