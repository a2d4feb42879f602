//! Certificates as people make them by mistake: the error has the cause and the remedy. Expired
//! certificates, and those of other names and authorities: `bad_nodes.rs`.

use devnodes::debug_form;
use devnodes::tls::Certificate;

use crate::support::*;

/// What `openssl x509 -req` without `-extfile` makes, until 2109.
const VERSION_1: (&str, &str) = (
    "-----BEGIN CERTIFICATE-----
MIIBHjCBxAIUKNVgyfcefYt43T7cWvcMnmRMymkwCgYIKoZIzj0EAwIwDTELMAkG
A1UEAwwCY2EwIBcNMjYxMTI2MjMyMDAwWhgPMjEwOTAxMTUyMzIwMDBaMBQxEjAQ
BgNVBAMMCTEyNy4wLjAuMTBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABNufqFhH
uMguUhJ1/n1F2DB1t3GopO0r3RPere3Vz+Z5P5HaSfseXKlGqUE/ueS+0mxtHeF5
77z7rGTvWZ/d+YQwCgYIKoZIzj0EAwIDSQAwRgIhANIoSdI5T4uO+bDCDXIfnSl9
cG+/uvIFamg1m27IVKL4AiEAm6PMA9wOKxzEB4gCyEO9oJBp4m4wbIgnlmKTIlQ4
9Yk=
-----END CERTIFICATE-----
",
    "-----BEGIN EC PRIVATE KEY-----
MHcCAQEEIKKkBmqLql3vRX0dpF6T01auLL4mNgEYeS4r991hiFAKoAoGCCqGSM49
AwEHoUQDQgAE25+oWEe4yC5SEnX+fUXYMHW3caik7SvdE96t7dXP5nk/kdpJ+x5c
qUapQT+55L7SbG0d4XnvvPusZO9Zn935hA==
-----END EC PRIVATE KEY-----
",
);

fn version_1() -> Certificate {
    Certificate {
        chain: VERSION_1.0.to_owned(),
        key: VERSION_1.1.to_owned(),
    }
}

#[test]
fn common_certificate_mistakes_have_a_cause_and_a_remedy() -> TestResult {
    let nodes = Secured::start(1);
    let own = &nodes.authority;
    let ours = ["127.0.0.1"];
    for (certificate, said) in [
        (
            own.own().clone(),
            "cannot be used: it is that of an authority (CA:TRUE); sign one for the server with it, and keep it as the CA file",
        ),
        (
            version_1(),
            "cannot be used: it is of X.509 version 1; sign it with subjectAltName, which makes it version 3",
        ),
        (
            own.certify(&[]),
            "is for no name and not for 127.0.0.1: give its name in the address,",
        ),
        (
            own.certify_hosts(&ours),
            "is for DNS:127.0.0.1 and not for 127.0.0.1: give its name in the address,",
        ),
        (
            own.certify_client(&ours),
            "cannot be used: certificate does not allow extended key usage for server authentication",
        ),
    ] {
        nodes.fronts[0].set_certificate(&certificate, None);
        let locks = nodes.builder().build()?;

        let text = tls_failure(&locks, 0).to_string();

        let begin = format!("its certificate {said}");
        assert!(text.starts_with(&begin), "{text}");
        assert_eq!(debug_form(&text), None);
    }
    Ok(())
}
