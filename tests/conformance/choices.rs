//! Which values are tried together.

use std::collections::HashSet;

/// All choices there are.
pub(crate) fn product(sizes: &[usize]) -> Vec<Vec<usize>> {
    sizes.iter().fold(vec![Vec::new()], |all, size| {
        all.iter().flat_map(|it| (0..*size).map(move |at| [&it[..], &[at]].concat())).collect()
    })
}

/// Choices among so many values each, in which every pair of values is there: what is left over is the first value, the
/// ordinary one, or any. `is_long`: each pair has a choice of its own.
pub(crate) fn pairs(sizes: &[usize], seed: u64, is_long: bool) -> Vec<Vec<usize>> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut pairs: Vec<_> = (0..sizes.len())
        .flat_map(|a| (0..a).map(move |b| (a, b)))
        .flat_map(|(a, b)| (0..sizes[a]).flat_map(move |at_a| (0..sizes[b]).map(move |at_b| [(a, at_a), (b, at_b)])))
        .collect();
    random.shuffle(&mut pairs);
    let mut covered = HashSet::new();
    let mut all = Vec::new();
    for pair in pairs {
        if !is_long && covered.contains(&pair) {
            continue;
        }
        let ordinary = random.u8(0..3);
        let value = |size: &usize| if random.u8(0..3) < ordinary { random.usize(0..*size) } else { 0 };
        let mut choice: Vec<_> = sizes.iter().map(value).collect();
        pair.iter().for_each(|(which, at)| choice[*which] = *at);
        let values: Vec<_> = choice.iter().copied().enumerate().collect();
        covered.extend(values.iter().flat_map(|a| values.iter().filter(|b| b.0 < a.0).map(|b| [*a, *b])));
        all.push(choice);
    }
    all
}
