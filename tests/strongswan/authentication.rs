//! Certificates instead of a shared secret.

use std::process::Stdio;

use crate::daemon::charon::Charon;
use crate::daemon::pair::Side;
use crate::site::Site;

/// Runs a line with `pki` in it beside the daemon, in its directory of keys.
fn pki(charon: &mut Charon, line: &str) {
    let out = charon
        .cell()
        .command("sh")
        .args(["-ec", &format!("cd /etc/swanctl; {line}")])
        .stdin(Stdio::null())
        .output()
        .expect("sh runs");
    assert!(out.status.success(), "{line}: {}", String::from_utf8_lossy(&out.stderr));
}

pub fn certificates(site: &mut Site) {
    // One end has the authority and issues both certificates.
    pki(
        &mut site.west,
        "pki --gen --type ecdsa --size 256 --outform pem > private/ca.pem
         pki --self --ca --in private/ca.pem --type ecdsa --dn 'CN=ca' --outform pem > x509ca/ca.pem
         for who in west east; do
           pki --gen --type ecdsa --size 256 --outform pem > ecdsa/$who.pem
           pki --pub --in ecdsa/$who.pem --type ecdsa | pki --issue --cacert x509ca/ca.pem \
             --cakey private/ca.pem --dn CN=$who --san $who --outform pem > x509/$who.pem
         done
         rm private/ca.pem",
    );
    for (from, to) in [
        ("x509ca/ca.pem", "x509ca/ca.pem"),
        ("x509/east.pem", "x509/east.pem"),
        ("ecdsa/east.pem", "ecdsa/east.pem"),
    ] {
        let text = std::fs::read_to_string(site.west.cell().file(&format!("etc/swanctl/{from}")));
        site.east.cell().write(&format!("etc/swanctl/{to}"), &text.expect("pki wrote it"));
    }
    pki(&mut site.west, "rm x509/east.pem ecdsa/east.pem");
    site.load(|connection| connection.certificates().child("net", 1, false, ""));
    site.west.initiate("net");
    site.pair.flows(1, false);
    let said = site.west.said("authentication of 'east' with ECDSA");
    assert!(said == 1, "a signature was checked:\n{}", site.west.log());
    assert_eq!(site.pair.pings(Side::East, 1, false, 10), 10);
}
