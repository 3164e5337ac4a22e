//! The fate of every kind of packet that is not plain: hops, fragments, options, extension headers,
//! and packets that break a rule. Each is sent on the wire, and each ends under its one name.

mod gateway;
mod peer;

use peer::{CLEAR, CLEAR6, Site, steered};
use serde_json::json;

/// Sends each packet from red to black; those that are forwarded must come out as they are.
fn hold(rows: &[(&str, &str)]) {
    let mut site = Site::new();
    site.becomes("red0", CLEAR, "forwarded");
    site.becomes("red0", CLEAR6, "forwarded");
    for (packet, verdict) in rows {
        if *verdict == "forwarded" {
            site.crosses("red0", "black0", packet, verdict);
        } else {
            site.expect("red0", packet, verdict);
        }
    }
    site.peer.ask("clear()");
    site.crosses("red0", "black0", CLEAR, "forwarded");
}

#[test]
fn every_hop_counts_once() {
    hold(&[
        ("IP(src='16.0.0.1', dst='48.0.0.1', ttl=255)/UDP()", "forwarded"),
        ("IP(src='16.0.0.1', dst='48.0.0.1', ttl=2)/UDP()", "forwarded"),
        ("IP(src='16.0.0.1', dst='48.0.0.1', ttl=1)/UDP()", "ttl_expired"),
        ("IP(src='16.0.0.1', dst='48.0.0.1', ttl=0)/UDP()", "ttl_expired"),
        ("IPv6(src='fd16::1', dst='fd48::1', hlim=255)/UDP()", "forwarded"),
        ("IPv6(src='fd16::1', dst='fd48::1', hlim=2)/UDP()", "forwarded"),
        ("IPv6(src='fd16::1', dst='fd48::1', hlim=1)/UDP()", "ttl_expired"),
        ("IPv6(src='fd16::1', dst='fd48::1', hlim=0)/UDP()", "ttl_expired"),
        // The carry of the checksum's update.
        ("IP(src='16.0.0.1', dst='48.0.0.1', ttl=64, id=0x97ce)/UDP()", "forwarded"),
        ("IP(src='16.0.0.1', dst='48.0.0.1', ttl=64, id=0xffff, tos=0xff)/UDP()", "forwarded"),
    ]);
}

#[test]
fn ipv4_fragments() {
    const FLOW: &str = "src='16.0.0.1', dst='48.0.0.1'";
    let row = |rest: &str, verdict| (rest.replace("FLOW", FLOW), verdict);
    let rows = [
        row("IP(FLOW, flags='MF')/UDP()/bytes(24)", "forwarded"),
        row("IP(FLOW, frag=4, flags='MF', proto=17)/bytes(32)", "forwarded"),
        row("IP(FLOW, frag=4, proto=17)/bytes(5)", "forwarded"),
        row("IP(FLOW, flags='DF')/UDP()/bytes(24)", "forwarded"),
        // A first fragment without its ports, and one that would overwrite TCP's flags.
        row("IP(FLOW, flags='MF', proto=17)/b'ab'", "ip_fragment"),
        row("IP(FLOW, frag=1, proto=6)/bytes(24)", "ip_fragment"),
        row("IP(FLOW, frag=1, proto=17)/bytes(24)", "forwarded"),
        // Past 65 535 bytes once put together.
        row("IP(FLOW, frag=8191, proto=17)/bytes(600)", "ip_fragment"),
        row("IP(FLOW, frag=8100, proto=17)/bytes(600)", "forwarded"),
    ];
    hold(&rows.each_ref().map(|(packet, verdict)| (packet.as_str(), *verdict)));
}

#[test]
fn ipv4_options() {
    const OPTIONS: &str = "IP(src='16.0.0.1', dst='48.0.0.1', options=[";
    let row = |options: &str, verdict| (format!("{OPTIONS}{options}])/UDP()/b'x'"), verdict);
    let raw = |hex| format!("checked(edit({OPTIONS}IPOption_NOP()])/UDP(), 20, '{hex}'))");
    let rows = [
        // The gateway is no stop of a record route: it is carried as it is.
        row("IPOption_RR(pointer=4, routers=['0.0.0.0', '0.0.0.0'])", "forwarded"),
        row("IPOption_Timestamp()", "forwarded"),
        row("IPOption_Router_Alert()", "forwarded"),
        row("IPOption_NOP()", "forwarded"),
        row("IPOption(bytes([0x9e, 4, 1, 2]))", "forwarded"),
        // Source routes with hops left evade the policy; used up, they are only a record.
        row("IPOption_LSRR(pointer=4, routers=['48.0.0.2'])", "source_route"),
        row("IPOption_SSRR(pointer=4, routers=['48.0.0.2', '48.0.0.3'])", "source_route"),
        row("IPOption_NOP(), IPOption_LSRR(pointer=4, routers=['48.0.0.2'])", "source_route"),
        row("IPOption_LSRR(pointer=8, routers=['48.0.0.2'])", "forwarded"),
        // Lengths that cannot be.
        (raw("07010400"), "ip_extensions"),
        (raw("07270400"), "ip_extensions"),
        (raw("01010107"), "ip_extensions"),
        (raw("01000727"), "forwarded"),
    ];
    hold(&rows.each_ref().map(|(packet, verdict)| (packet.as_str(), *verdict)));
}

#[test]
fn ipv6_extension_headers() {
    const FLOW: &str = "IPv6(src='fd16::1', dst='fd48::1')/";
    let row = |rest: &str, verdict| (format!("{FLOW}{rest}"), verdict);
    let rows = [
        row("IPv6ExtHdrHopByHop()/UDP()/b'x'", "forwarded"),
        row("IPv6ExtHdrDestOpt()/UDP()/b'x'", "forwarded"),
        row("IPv6ExtHdrHopByHop()/IPv6ExtHdrDestOpt()/IPv6ExtHdrDestOpt()/TCP()", "forwarded"),
        row("IPv6ExtHdrRouting(type=0, segleft=1, addresses=['fd48::2'])/UDP()", "source_route"),
        row("IPv6ExtHdrRouting(type=0, segleft=0, addresses=['fd48::2'])/UDP()", "forwarded"),
        // Eight headers, and one too many.
        (chain(8), "forwarded"),
        (chain(9), "ip_extensions"),
        row("IPv6ExtHdrDestOpt()/IPv6ExtHdrHopByHop()/UDP()", "ip_extensions"),
        row("IPv6ExtHdrFragment(m=1, id=7)/UDP()/bytes(24)", "forwarded"),
        row("IPv6ExtHdrFragment(offset=4, m=1, id=7, nh=17)/bytes(32)", "forwarded"),
        row("IPv6ExtHdrFragment(offset=4, m=0, id=7, nh=17)/bytes(5)", "forwarded"),
        row("IPv6ExtHdrFragment(offset=0, m=0, id=7)/UDP()/b'atomic'", "forwarded"),
        row("IPv6ExtHdrFragment(m=1, id=7, nh=17)/b'ab'", "ip_fragment"),
        row("IPv6ExtHdrFragment(offset=8191, m=0, id=7, nh=17)/bytes(600)", "ip_fragment"),
        row("IPv6ExtHdrFragment(m=1, id=7)/IPv6ExtHdrFragment(m=1, id=7)/UDP()", "ip_extensions"),
        // A later fragment whose protocol stays hidden behind another extension header.
        row("IPv6ExtHdrFragment(offset=4, m=0, id=7, nh=60)/bytes(32)", "ip_extensions"),
        // No next header, and a protocol that nobody knows.
        ("IPv6(src='fd16::1', dst='fd48::1', nh=59)".to_owned(), "forwarded"),
        ("IPv6(src='fd16::1', dst='fd48::1', nh=253)/b'experiment'".to_owned(), "forwarded"),
    ];
    hold(&rows.each_ref().map(|(packet, verdict)| (packet.as_str(), *verdict)));
}

/// A packet with so many destination options headers.
fn chain(headers: usize) -> String {
    format!("IPv6(src='fd16::1', dst='fd48::1')/{}UDP()", "IPv6ExtHdrDestOpt()/".repeat(headers))
}

#[test]
fn headers_that_break_a_rule() {
    const UDP4: &str = "raw(IP(src='16.0.0.1', dst='48.0.0.1')/UDP()/bytes(12))";
    const UDP6: &str = "raw(IPv6(src='fd16::1', dst='fd48::1')/UDP()/bytes(12))";
    let v4 = |change: &str, verdict| (change.replace("UDP4", UDP4), verdict);
    let v6 = |change: &str, verdict| (change.replace("UDP6", UDP6), verdict);
    let rows = [
        v4("edit(UDP4, 10, 'dead')", "ip_checksum"),
        v4("edit(UDP4, 16, '31')", "ip_checksum"),
        v4("checked(edit(UDP4, 0, '44'))", "ip_header_length"),
        v4("checked(edit(UDP4, 2, '0013'))", "ip_total_length"),
        v4("checked(edit(UDP4, 2, '0029'))", "ip_truncated"),
        v4("UDP4[:19]", "ip_truncated"),
        v4("UDP4[:39]", "ip_truncated"),
        v4("checked(edit(UDP4, 2, '0016')[:22])", "ip_truncated"),
        v4("edit(UDP4, 0, '55')", "ip_version"),
        v4("UDP4 + bytes(18)", "forwarded"),
        v6("edit(UDP6, 4, '0015')", "ip_truncated"),
        v6("UDP6[:39]", "ip_truncated"),
        v6("UDP6 + bytes(18)", "forwarded"),
        v6("edit(UDP6, 6, '00')[:4] + bytes(2) + edit(UDP6, 6, '00')[6:40]", "ip_total_length"),
        v4("IP(src='224.0.0.1', dst='48.0.0.1')/UDP()", "martian_source"),
        v4("IP(src='127.0.0.1', dst='48.0.0.1')/UDP()", "martian_source"),
        v4("IP(src='0.0.0.0', dst='48.0.0.1')/UDP()", "martian_source"),
        v4("IP(src='255.255.255.255', dst='48.0.0.1')/UDP()", "martian_source"),
        v4("IP(src='169.254.0.1', dst='48.0.0.1')/UDP()", "martian_source"),
        v4("IP(src='16.0.0.1', dst='127.0.0.2')/UDP()", "martian_destination"),
        v4("IP(src='16.0.0.1', dst='0.0.0.0')/UDP()", "martian_destination"),
        v4("IP(src='16.0.0.1', dst='241.0.0.1')/UDP()", "martian_destination"),
        v6("IPv6(src='ff02::1', dst='fd48::1')/UDP()", "martian_source"),
        v6("IPv6(src='fe80::1', dst='fd48::1')/UDP()", "martian_source"),
        v6("IPv6(src='::1', dst='fd48::1')/UDP()", "martian_source"),
        v6("IPv6(src='::', dst='fd48::1')/UDP()", "martian_source"),
        v6("IPv6(src='fd16::1', dst='::')/UDP()", "martian_destination"),
    ];
    hold(&rows.each_ref().map(|(packet, verdict)| (packet.as_str(), *verdict)));
}

#[test]
fn frames_that_are_not_plain() {
    let mut site = Site::new();
    site.becomes("red0", CLEAR, "forwarded");
    let to = "Ether(dst=WIRES['red0'].gateway, src='02:00:00:00:00:fe'";
    let mut fate = |frame: String| {
        let fates = site.fates_of(1, &frame, |peer| {
            peer.ask(&format!("send_frame('red0', {frame})"));
        });
        fates.into_keys().collect::<Vec<_>>().join(" and ")
    };
    assert_eq!(fate(format!("{to})/Dot1Q(vlan=7)/{CLEAR}")), "vlan_unknown");
    assert_eq!(fate(format!("{to})/Dot1Q(vlan=0, prio=5)/{CLEAR}")), "forwarded");
    assert_eq!(fate(format!("{to})/Dot1Q(vlan=7)/Dot1Q(vlan=8)/{CLEAR}")), "vlan_unknown");
    assert_eq!(fate(format!("{to}, type=0x86dd)/{CLEAR}")), "ip_version");
    assert_eq!(fate(format!("{to}, type=0x0800)/{CLEAR6}")), "ip_version");

    // What is the kernel's, whatever comes of it there.
    let not_ours = "Ether(dst='02:00:00:00:00:99', src='02:00:00:00:00:fe')";
    for (frame, count) in [
        (format!("{not_ours}/{CLEAR}"), "pass_not_ours"),
        (format!("Ether(dst='ff:ff:ff:ff:ff:ff')/{CLEAR}"), "pass_not_ours"),
        (format!("{to}, type=0x88cc)/b'LLDP or so'"), "pass_not_ip"),
        (format!("{to})/IP(src='10.0.0.1', dst='224.0.0.9')/UDP()"), "pass_control"),
        (format!("{to})/IP(src='0.0.0.0', dst='255.255.255.255')/UDP(dport=67)"), "pass_control"),
        (format!("{to})/IPv6(src='fe80::1', dst='fe80::2')/UDP()"), "pass_control"),
        (format!("{to})/IPv6(src='fd16::1', dst='ff05::2')/UDP()"), "pass_control"),
        (format!("{to})/IP(src='10.0.0.1', dst='10.0.0.254', flags='MF')/UDP()"), "pass_fragment"),
        (
            format!("{to})/IP(src='10.0.0.1', dst='10.0.0.254', proto=50)/bytes(64)"),
            "pass_esp_reserved",
        ),
        (format!("{to})/IP(src='10.0.0.1', dst='10.0.0.255')/UDP()"), "pass_local"),
        (format!("{to})/IP(src='10.0.0.1', dst='127.0.0.1')/UDP()"), "pass_local"),
        (format!("{to})/IPv6(src='fd16::1', dst='::1')/UDP()"), "pass_local"),
    ] {
        let before = site.steered("red0", count);
        let fates = site.fates();
        site.peer.ask(&format!("send_frame('red0', {frame})"));
        site.gateway
            .wait(&frame, |gateway| steered(&gateway.show("ports"), "red0", count) > before);
        assert_eq!(site.fates(), fates, "{frame} is no worker's");
    }
    assert_eq!(site.peer.ask(&format!("came_through('black0', {CLEAR})")), json!(true));
}
