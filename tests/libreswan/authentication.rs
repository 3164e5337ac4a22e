//! Certificates instead of a shared secret: an authority made with openssl, and NSS databases filled
//! with the daemon's own certutil and pk12util.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::daemon::pair::Side;
use crate::daemon::pluto::{Conn, Pluto, configuration};
use crate::site::Site;

/// Where pluto has its keys, as it names it.
const DATABASE: &str = "sql:/var/lib/ipsec/nss";
/// What the files that keys travel in are locked with.
const LOCK: &str = "travels-only";

/// Makes an authority and a certificate for either end, each with its key in a PKCS#12 file.
/// `kind` is what `openssl req -newkey` takes.
fn authority(at: &Path, kind: &str) {
    let script = format!(
        "new() {{
           who=$1; shift
           openssl req -newkey {kind} -nodes -keyout $who.key -subj /CN=$who \"$@\"
         }}
         new ca -x509 -days 30 -out ca.pem -addext keyUsage=critical,keyCertSign,cRLSign
         for end in west east; do
           new $end -out $end.csr
           printf 'subjectAltName=DNS:%s\\nkeyUsage=digitalSignature\\n' $end > $end.ext
           openssl x509 -req -in $end.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 30 \
             -extfile $end.ext -out $end.pem
           openssl pkcs12 -export -name $end -in $end.pem -inkey $end.key -certfile ca.pem \
             -passout pass:{LOCK} -out $end.p12
         done"
    );
    let out = Command::new("sh")
        .args(["-ec", &script])
        .current_dir(at)
        .stdin(Stdio::null())
        .output()
        .expect("sh runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

/// Gives a daemon its key and certificate, and the authority to trust.
fn enrol(pluto: &mut Pluto, from: &Path, side: Side) {
    let bundle = format!("{}.p12", side.id());
    for name in ["ca.pem", &bundle] {
        std::fs::copy(from.join(name), pluto.cell().file(&format!("tmp/{name}"))).expect("a copy");
    }
    let cell = pluto.cell();
    let bundle = format!("/tmp/{bundle}");
    cell.run("pk12util", &["-i", &bundle, "-d", DATABASE, "-W", LOCK]);
    let trust = ["-A", "-n", "authority", "-t", "CT,,", "-d", DATABASE, "-i", "/tmp/ca.pem"];
    cell.run("certutil", &trust);
}

/// A connection as `side` has it: it knows its own certificate, and the other's name.
fn connection(side: Side, authby: &str) -> Conn {
    let mut conn = Conn::new("net", false, 1, false).set("authby", authby);
    for (end, whose) in [("left", Side::West), ("right", Side::East)] {
        conn = conn.set(&format!("{end}id"), &format!("\"CN={}\"", whose.id()));
        if whose == side {
            conn = conn.set(&format!("{end}cert"), whose.id());
        }
    }
    conn
}

fn authenticated(site: &mut Site, key: &str, authby: &str, said: &str) {
    let directory = tempfile::tempdir().expect("a directory");
    authority(directory.path(), key);
    for (side, pluto) in [(Side::West, &mut site.west), (Side::East, &mut site.east)] {
        enrol(pluto, directory.path(), side);
        // It reads its keys when it starts.
        pluto.stop();
        // Nobody has a shared secret any more.
        pluto.cell().write("etc/ipsec.secrets", "");
        pluto.restart();
        pluto.load(&configuration(&[connection(side, authby)]));
    }
    site.west.initiate("net");
    site.pair.flows(1, false);
    assert_eq!(site.pair.pings(Side::East, 1, false, 10), 10);
    for pluto in [&site.west, &site.east] {
        assert!(pluto.said(said), "{}", pluto.log());
    }
    site.west.terminate("net");
    site.wait_sas(0);
}

pub fn certificates(site: &mut Site) {
    authenticated(site, "rsa:3072", "rsa-sha2", "RSA");
}

pub fn certificates_of_elliptic_curves(site: &mut Site) {
    authenticated(site, "ec -pkeyopt ec_paramgen_curve:P-256", "ecdsa", "ECDSA");
}
