//! A wall clock that can be stepped, for whatever process this library is preloaded into (`LD_PRELOAD`), and names that are not
//! resolved. Linux only; elsewhere it is empty.
//!
//! It answers `clock_gettime` for the wall clock, `gettimeofday` and `time` with the system's time plus an offset, and
//! hands all other clocks through. The offset is read, at every call, from a file that the environment names in
//! `QUORLOCK_CLOCK_FILE` and that was mapped when the library was loaded: whoever writes to the file steps the clock of a
//! process that runs.
//!
//! # The file
//!
//! Four whole numbers of 64 bits, in the machine's byte order:
//!
//! | number | meaning |
//! | --- | --- |
//! | 0 | odd while the others are being written; changed by every writer |
//! | 1 | offset in nanoseconds at the anchor |
//! | 2 | anchor: the system's time, in nanoseconds since 1970, from which on the rate counts |
//! | 3 | rate: parts per million by which the clock runs fast; negative if slow |
//!
//! # What it must not do
//!
//! These functions are called by allocators while they start, before anything else works: Debian's server has
//! jemalloc, and a preload that allocates there, or takes a lock, hangs for ever. So nothing here allocates, locks or
//! looks up a symbol: the time comes straight from the kernel, and where there is no file the offset is zero. What resolves
//! names is called by nobody who starts.
//!
//! Nobody may link to this library: its functions would then be those of the program that does. `devnodes` depends on it
//! so that cargo builds it, and names nothing in it.

#[cfg(target_os = "linux")]
mod linux {
    use std::ffi::CStr;
    use std::sync::atomic::{AtomicI64, AtomicPtr, Ordering};
    use std::{mem, ptr};

    use libc::{addrinfo, c_char, c_int, c_long, c_void, clockid_t, time_t, timespec, timeval};

    /// The environment variable that names the file.
    const VARIABLE: &CStr = c"QUORLOCK_CLOCK_FILE";
    /// The one that names the file with which names are slow.
    const SLOW_NAMES: &CStr = c"QUORLOCK_SLOW_NAMES";
    /// Length of the file in bytes.
    const LEN: usize = 32;
    const SECOND: i64 = 1_000_000_000;
    /// The file, once it is mapped; never unmapped.
    static FILE: AtomicPtr<[AtomicI64; 4]> = AtomicPtr::new(ptr::null_mut());

    /// Run by the loader, before `main`.
    #[used]
    #[unsafe(link_section = ".init_array")]
    static ON_LOAD: extern "C" fn() = map_file;

    extern "C" fn map_file() {
        // SAFETY: plain system calls. The name is a string that ends in zero, from the environment, which nobody
        // changes before `main`. The mapping is shared, readable and as long as the file, and stays for good.
        unsafe {
            let name: *const c_char = libc::getenv(VARIABLE.as_ptr());
            if name.is_null() {
                return;
            }
            let file = libc::open(name, libc::O_RDONLY | libc::O_CLOEXEC);
            if file < 0 {
                return;
            }
            let mut stat: libc::stat = std::mem::zeroed();
            let long_enough = libc::fstat(file, &mut stat) == 0 && stat.st_size >= LEN as i64;
            if long_enough {
                let at = libc::mmap(
                    ptr::null_mut(),
                    LEN,
                    libc::PROT_READ,
                    libc::MAP_SHARED,
                    file,
                    0,
                );
                if at != libc::MAP_FAILED {
                    FILE.store(at.cast(), Ordering::Release);
                }
            }
            libc::close(file);
        }
    }

    /// How far the stepped clock is ahead when the system's shows `now`, both in nanoseconds.
    fn offset(now: i64) -> i64 {
        let file = FILE.load(Ordering::Acquire);
        if file.is_null() {
            return 0;
        }
        // SAFETY: a mapping of that length and alignment that is never unmapped. Others write to it, so it is read as
        // atomic numbers.
        let numbers = unsafe { &*file };
        let mut found = 0;
        // RACE: a writer may be at work. It is done within microseconds, unless it was killed in between: then what is
        // there has to do, because a clock must answer.
        for _ in 0..10_000 {
            let before = numbers[0].load(Ordering::Acquire);
            let [offset, anchor, rate] = [1, 2, 3].map(|i| numbers[i].load(Ordering::Acquire));
            let run = i128::from(now.wrapping_sub(anchor)) * i128::from(rate) / 1_000_000;
            found = offset.wrapping_add(run as i64);
            if before & 1 == 0 && numbers[0].load(Ordering::Acquire) == before {
                break;
            }
        }
        found
    }

    /// Asks the kernel itself: the C library's function of that name is this one now.
    fn kernel_time(clock: clockid_t, to: *mut timespec) -> c_int {
        // SAFETY: a system call; a bad pointer is an error of the call. It sets `errno` as the callers' contract says.
        unsafe { libc::syscall(libc::SYS_clock_gettime, clock as c_long, to) as c_int }
    }

    /// The stepped wall clock, in nanoseconds since 1970.
    fn wall_clock() -> i64 {
        let mut now = timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        kernel_time(libc::CLOCK_REALTIME, &mut now);
        #[allow(
            clippy::useless_conversion,
            reason = "they are narrower on some systems"
        )]
        let now = i64::from(now.tv_sec) * SECOND + i64::from(now.tv_nsec);
        now.wrapping_add(offset(now))
    }

    /// In place of the C library's.
    ///
    /// # Safety
    ///
    /// As there: `to` is null or can be written to.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn clock_gettime(clock: clockid_t, to: *mut timespec) -> c_int {
        let is_wall = matches!(clock, libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_COARSE);
        if !is_wall || to.is_null() {
            return kernel_time(clock, to);
        }
        let now = wall_clock();
        // SAFETY: the caller's promise.
        unsafe {
            *to = timespec {
                tv_sec: now.div_euclid(SECOND) as _,
                tv_nsec: now.rem_euclid(SECOND) as _,
            }
        };
        0
    }

    /// In place of the C library's.
    ///
    /// # Safety
    ///
    /// As there: `to` can be written to, and `zone` is null or can be.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn gettimeofday(to: *mut timeval, zone: *mut c_void) -> c_int {
        if !zone.is_null() {
            // SAFETY: the caller's promise: a `timezone` of two numbers, obsolete and always zero.
            unsafe { zone.cast::<[c_int; 2]>().write([0, 0]) };
        }
        if !to.is_null() {
            let micros = wall_clock().div_euclid(1000);
            let (seconds, micros) = (micros.div_euclid(1_000_000), micros.rem_euclid(1_000_000));
            // SAFETY: the caller's promise.
            unsafe {
                *to = timeval {
                    tv_sec: seconds as _,
                    tv_usec: micros as _,
                }
            };
        }
        0
    }

    /// In place of the C library's.
    ///
    /// # Safety
    ///
    /// As there: `to` is null or can be written to.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn time(to: *mut time_t) -> time_t {
        let seconds = wall_clock().div_euclid(SECOND) as time_t;
        if !to.is_null() {
            // SAFETY: the caller's promise.
            unsafe { *to = seconds };
        }
        seconds
    }

    /// In place of the C library's. A name that begins with `slow` is this machine's, and is not resolved as long as the file
    /// exists that the environment names.
    ///
    /// # Safety
    ///
    /// As there: `node` and `service` are strings or null, `hints` can be read or is null, `found` can be written to.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn getaddrinfo(
        mut node: *const c_char,
        service: *const c_char,
        hints: *const addrinfo,
        found: *mut *mut addrinfo,
    ) -> c_int {
        let is_slow = || {
            // SAFETY: the caller's promise, if it is not null.
            let name = unsafe { CStr::from_ptr(node) };
            name.to_bytes().starts_with(b"slow")
        };
        if !node.is_null() && is_slow() {
            // SAFETY: plain system calls. Nobody changes the environment of such a process.
            unsafe {
                let file = libc::getenv(SLOW_NAMES.as_ptr());
                while !file.is_null() && libc::access(file, libc::F_OK) == 0 {
                    libc::usleep(1_000);
                }
            }
            node = c"127.0.0.1".as_ptr();
        }
        type Function = unsafe extern "C" fn(
            *const c_char,
            *const c_char,
            *const addrinfo,
            *mut *mut addrinfo,
        ) -> c_int;
        // SAFETY: the next function of that name is the C library's, which has this form.
        let next: Option<Function> =
            unsafe { mem::transmute(libc::dlsym(libc::RTLD_NEXT, c"getaddrinfo".as_ptr())) };
        // SAFETY: the caller's promise.
        next.map_or(libc::EAI_FAIL, |next| unsafe {
            next(node, service, hints, found)
        })
    }
}
