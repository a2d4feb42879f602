//! Groups of servers.

use devnodes::Group;

#[test]
fn a_replica_has_what_its_master_has_and_can_be_promoted() -> Result<(), devnodes::Error> {
    let group = Group::start(1)?;
    group.servers[0].command(&["SET", "a", "1"])?;
    devnodes::eventually("it is replicated", || group.servers[1].exists("a"));
    group.promote(1)?;
    group.servers[1].command(&["SET", "b", "1"])?;
    group.demote(0, 1)?;
    assert!(group.servers[0].exists("b"));
    Ok(())
}

#[test]
fn sentinels_promote_a_replica_of_a_master_that_is_gone() -> Result<(), devnodes::Error> {
    let group = Group::builder(1)
        .sentinels(3)
        .password("one")
        .sentinel_password("two")
        .start()?;
    group.servers[0].kill()?;
    assert_eq!(group.fail_over(0)?, 1);
    group.servers[1].command(&["SET", "a", "1"])?;
    Ok(())
}
