//! Writes a source with all changes in it.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::find::{Change, Kind};

/// The source with its changes; the first of them has the number `first`.
pub(crate) fn weave(text: &str, changes: &[Change], first: usize) -> String {
    // What begins earlier, and of what begins together the longer one, is around the others.
    let mut sites: BTreeMap<(usize, isize), Vec<(usize, &Change)>> = BTreeMap::new();
    for (i, change) in changes.iter().enumerate() {
        let key = (change.at.start, -change.at.end.cast_signed());
        sites.entry(key).or_default().push((first + i, change));
    }
    let sites: Vec<_> = sites.into_values().collect();
    let mut woven = String::new();
    write(text, 0..text.len(), &mut sites.iter().map(Vec::as_slice).peekable(), &mut woven);
    woven
}

type Sites<'a, I> = std::iter::Peekable<I>;

/// Writes a part of the source.
fn write<'a, I>(text: &str, part: Range<usize>, sites: &mut Sites<'a, I>, woven: &mut String)
where
    I: Iterator<Item = &'a [(usize, &'a Change)]>,
{
    let mut at = part.start;
    while let Some(site) = sites.next_if(|it| it[0].1.at.start < part.end) {
        let inner = site[0].1.at.clone();
        assert!(inner.end <= part.end, "changes overlap: {}", &text[inner]);
        *woven += &text[at..inner.start];
        at = inner.end;
        if site[0].1.kind == Kind::Arm {
            let (number, arm) = &site[0];
            *woven += &format!("{} !crate::is_tried({number})", arm.to);
            continue;
        }
        let is_statement = site[0].1.kind == Kind::Statement;
        *woven += if is_statement { "{" } else { "(" };
        for (number, change) in site {
            *woven += &format!("if crate::is_tried({number}) {{ {} }} else ", change.to);
        }
        *woven += "{ ";
        write(text, inner, sites, woven);
        *woven += if is_statement { " }}" } else { " })" };
    }
    *woven += &text[at..part.end];
}
