//! What can be wrong with one server.

use std::fs;

use crate::{Error, FakeServer, Server, eventually};

/// What is wrong with a server.
#[derive(Clone, Copy, Debug)]
pub enum Spoiled {
    /// It was emptied, and its memory is full.
    Full,
    /// It was emptied, and cannot write its snapshot, so it takes no writes.
    CannotSave,
    /// It was emptied, and takes no writes without a replica.
    ReadOnly,
    /// It answers nothing.
    Hangs,
    /// It answers the first commands of the login, and not the script that syncs it.
    HangsInLogin,
    /// It lets clients log in, and answers nothing after that.
    HangsAfterLogin,
    /// It wants a password.
    RefusesLogin,
}

/// Spoils a server. The fake is to be asked in its place, if there is one.
pub fn spoil(server: &Server, how: Spoiled) -> Result<Option<FakeServer>, Error> {
    let set = |name: &str, value: &str| server.command(&["CONFIG", "SET", name, value]);
    if matches!(how, Spoiled::Full | Spoiled::CannotSave | Spoiled::ReadOnly) {
        // So its record cannot be written.
        server.command(&["FLUSHALL"])?;
    }
    match how {
        Spoiled::Full => drop(set("maxmemory", "1")?),
        Spoiled::CannotSave => cannot_save(server)?,
        Spoiled::ReadOnly => drop(set("min-replicas-to-write", "1")?),
        Spoiled::Hangs => server.pause()?,
        Spoiled::HangsInLogin | Spoiled::HangsAfterLogin => {
            // The record is asked for in the login, by the only script there.
            let syncs = matches!(how, Spoiled::HangsAfterLogin);
            let fake = FakeServer::speaking_for(server.addr(), move |_, command| {
                let is_script = command[0].starts_with(b"EVAL");
                (is_script && !(syncs && command[3] == b"quorlock:record")).then(Vec::new)
            })?;
            return Ok(Some(fake));
        }
        Spoiled::RefusesLogin => drop(set("requirepass", "secret")?),
    }
    Ok(None)
}

/// A folder stands where the snapshot is to be.
fn cannot_save(server: &Server) -> Result<(), Error> {
    let get = |name: &str| {
        let reply = server.command(&["CONFIG", "GET", name])?;
        let value = reply.as_array().and_then(|it| it.get(1)?.as_bytes());
        Ok::<_, Error>(String::from_utf8_lossy(value.unwrap_or_default()).into_owned())
    };
    let file = format!("{}/{}", get("dir")?, get("dbfilename")?);
    let _ = fs::remove_file(&file);
    fs::create_dir_all(&file).expect("a folder of our own");
    server.command(&["CONFIG", "SET", "save", "3600 1"])?;
    server.command(&["BGSAVE"])?;
    eventually("it could not save", || {
        server.info("rdb_last_bgsave_status").as_deref() == Some("err")
    });
    Ok(())
}
