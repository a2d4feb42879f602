//! The warning before a loss.

use crossbeam_channel::TryRecvError;
use devnodes::eventually;
use quorlock::LostReason;

use crate::support::*;

#[test]
fn a_holder_without_extensions_is_warned_before_its_lock_is_lost() -> TestResult {
    let (servers, locks) = start_connected(3, |urls| with_ttl(urls, secs(3)));
    let guard = locks.mutex("report").lock()?;
    let (expiring, lost) = (guard.expiring(), guard.lost());
    let other = guard.expiring();
    eventually("it is extended", || 3 <= locks.stats().extensions);
    assert!(expiring.try_recv().is_err(), "while servers answer");

    servers[0].pause()?;
    servers[1].pause()?;

    assert_eq!(announced(&expiring), LostReason::Expired);
    assert_eq!(lost.try_recv(), Err(TryRecvError::Empty), "no time is left");
    assert!(guard.is_valid() && guard.remaining() <= secs(1));
    assert_eq!(announced(&other), LostReason::Expired);
    assert_eq!(announced(&lost), LostReason::Expired);
    assert_eq!(
        announced(&guard.expiring()),
        LostReason::Expired,
        "afterwards"
    );
    Ok(())
}

#[test]
fn a_loss_without_a_warning_reaches_warning_channels() -> TestResult {
    let (servers, locks) = start_connected(3, |urls| builder(urls).ttl(LONG));
    let guard = locks.mutex("report").lock()?;
    let expiring = guard.expiring();
    del_all(&servers, "report");
    assert!(guard.extend(LONG).is_err());
    assert_eq!(announced(&expiring), LostReason::Gone);

    let guard = locks.mutex("other").lock()?;
    let expiring = guard.expiring();
    guard.keep_for(secs(1))?;
    drop(guard);
    assert_eq!(expiring.try_recv(), Err(TryRecvError::Disconnected));
    Ok(())
}

#[test]
fn a_handed_over_lock_sends_no_warning_while_servers_answer() -> TestResult {
    let (_servers, locks) = start_connected(3, |urls| with_ttl(urls, secs(6)));
    let first = locks.mutex("report").lock()?;
    let waits = {
        let locks = locks.clone();
        std::thread::spawn(move || locks.mutex("report").lock())
    };
    eventually("it waits", || locks.stats().waiting == 1);
    drop(first);
    let guard = waits.join().unwrap()?;
    let expiring = guard.expiring();

    let before = locks.stats().extensions;
    eventually("it is extended", || before + 2 <= locks.stats().extensions);

    assert_eq!(expiring.try_recv(), Err(TryRecvError::Empty));
    Ok(())
}
