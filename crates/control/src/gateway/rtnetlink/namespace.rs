//! A network namespace, for tests of what is written to the kernel.

use std::fs::File;
use std::os::fd::AsFd;
use std::process::Command;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Removed when it is dropped.
pub struct Namespace(String);

impl Namespace {
    /// One with IPv6. The tag is one among the tests of this process.
    pub fn new(tag: &str) -> Namespace {
        let name = format!("pg{tag}-{}", std::process::id());
        let status = Command::new("ip").args(["netns", "add", &name]).status();
        assert!(status.unwrap().success());
        let namespace = Namespace(name);
        namespace.inside(|| namespace.set_ipv6("default", true));
        namespace
    }

    /// What `ip` says to a line of words.
    pub fn ip(&self, line: &str) -> String {
        let words = line.split_whitespace();
        let out = Command::new("ip").args(["-n", &self.0]).args(words).output().unwrap();
        assert!(out.status.success(), "ip {line}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    }

    /// Has an interface do IPv6, or not; from inside.
    pub fn set_ipv6(&self, interface: &str, enabled: bool) {
        let path = format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6");
        std::fs::write(path, if enabled { "0" } else { "1" }).unwrap();
    }

    /// Runs in a thread inside the namespace.
    pub fn inside(&self, test: impl FnOnce() + Send) {
        let file = File::open(format!("/run/netns/{}", self.0)).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let kind = Some(LinkNameSpaceType::Network);
                move_into_link_name_space(file.as_fd(), kind).unwrap();
                test();
            });
        });
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}
