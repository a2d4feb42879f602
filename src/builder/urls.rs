//! Several URLs in one text.

/// See `Node::split_urls`.
pub(super) fn split(text: &str) -> Vec<String> {
    let mut urls: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        let first = urls.len();
        for part in word.split(',').filter(|it| !it.is_empty()) {
            match urls.get_mut(first..).and_then(<[String]>::last_mut) {
                Some(url) if !part.contains("://") => *url += &format!(",{part}"),
                _ => urls.push(part.to_owned()),
            }
        }
    }
    urls
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_with_commas_or_white_space_between_may_have_commas_themselves() {
        assert_eq!(
            split(" redis://a,redis://b\n redis://c, "),
            ["redis://a", "redis://b", "redis://c"]
        );
        let groups = "redis+sentinel://s1,s2:26380,s3/b,redis+replicated://:p,w@c,d redis+cluster://e,f,redis://g";
        let of_groups = [
            "redis+sentinel://s1,s2:26380,s3/b",
            "redis+replicated://:p,w@c,d",
            "redis+cluster://e,f",
            "redis://g",
        ];
        assert_eq!(split(groups), of_groups);
        assert_eq!(
            split("a,b c"),
            ["a,b", "c"],
            "what is no URL is refused as it was given"
        );
        assert_eq!(split(" , "), [""; 0]);
    }
}
