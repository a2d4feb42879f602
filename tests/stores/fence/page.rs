//! The page and the constants say the same.

use quorlock::fence::{MYSQL, POSTGRES, REDIS, SQLITE, Sql};

const PAGE: &str = include_str!("../../../src/guide/fencing.md");

/// The block of code on the page that has this text in it.
#[track_caller]
pub(crate) fn code(part: &str) -> String {
    let mut blocks = PAGE.split("\n```").skip(1).step_by(2);
    let block = blocks.find(|it| it.contains(part));
    let block = block.unwrap_or_else(|| panic!("the page has no block with {part}"));
    block.split_once('\n').unwrap().1.to_owned()
}

/// With one space between words.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn f9_the_page_shows_the_statements_that_are_tested_here() {
    let page = words(PAGE);
    for Sql {
        create,
        register,
        largest,
        ..
    } in [POSTGRES, SQLITE, MYSQL]
    {
        for statement in [create, register, largest] {
            assert!(page.contains(&words(statement)), "{statement}");
        }
    }
    let own_row = crate::sqlite::DIALECT;
    for statement in [own_row.own_register, own_row.own_write] {
        assert!(page.contains(statement), "{statement}");
    }
    assert!(words(REDIS).contains("redis.call"));
}
