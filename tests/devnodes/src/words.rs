//! What has no place in a text for people.

/// The first word of a text that is the Debug form of a value, as `Other(BadKey)`, `Some(3)` or `it\'s`.
///
/// Known by a capital letter within a capitalized word, by a capitalized word next to a parenthesis, and by an escaped
/// apostrophe.
pub fn debug_form(text: &str) -> Option<&str> {
    text.split([' ', ',', ';', '/']).find(|word| {
        let bytes = word.as_bytes();
        let is_camel = word
            .trim_start_matches(['(', '"'])
            .starts_with(|it: char| it.is_ascii_uppercase())
            && bytes
                .windows(2)
                .any(|it| it[0].is_ascii_lowercase() && it[1].is_ascii_uppercase());
        let is_tuple = word.starts_with(|it: char| it.is_ascii_uppercase())
            && bytes
                .windows(2)
                .any(|it| it[0].is_ascii_alphanumeric() && it[1] == b'(');
        let is_variant = word
            .strip_prefix('(')
            .and_then(|it| it.strip_suffix(')'))
            .is_some_and(|it| {
                it.starts_with(|it: char| it.is_ascii_uppercase())
                    && it.ends_with(|it: char| it.is_ascii_lowercase())
            });
        is_camel || is_tuple || is_variant || word.contains("\\'") || *word == "{"
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_forms_are_found_and_words_are_not() {
        for text in [
            "it is Other(OtherError(CaUsedAsEndEntity))",
            "lost round (Held) in 3 ms",
            "Some(3)",
            "unknown command \\'SCRIPT\\'",
            "for DnsName(\"a\")",
            "Gone { left: 3 }",
        ] {
            assert!(debug_form(text).is_some(), "{text}");
        }
        for text in [
            "unknown command 'SCRIPT'",
            "wait, as lock() does; call `admin().vouch()`: see Builder::strict",
            "n0 (10.0.0.1:6379): its certificate has expired (CA:TRUE)",
            "2 locks not extended, the first (\"short\") ends in 3 s",
            "sign it with subjectAltName=IP:10.0.0.1",
            "an unknown address: redis+sentinel://host,host/NAME, CLUSTER INFO, RESP3",
        ] {
            assert_eq!(debug_form(text), None);
        }
    }
}
