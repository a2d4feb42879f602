//! Tests of `tests/redis` know by `cfg(stand_ins)` that they run here.

fn main() {
    println!("cargo::rustc-check-cfg=cfg(stand_ins)");
    println!("cargo::rustc-cfg=stand_ins");
    println!("cargo::rerun-if-changed=build.rs");
}
