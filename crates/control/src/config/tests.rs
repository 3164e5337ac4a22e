//! Every refusal is provoked once, and its sentence is looked at.

use proptest::prelude::*;

use super::*;

const GOOD: &str = r#"
name = "gw0"
cores = [0, 1]
[[port]]
interface = "red0"
[[port]]
name = "black"
interface = "eth1"
mode = "native"
"#;

fn refusal(text: &str) -> String {
    let sentence = Config::parse(text).expect_err("refused").to_string();
    assert!(!sentence.contains('\n'), "one line: {sentence}");
    sentence
}

#[track_caller]
fn assert_refused(text: &str, words: &[&str]) {
    let sentence = refusal(text);
    for word in words {
        assert!(sentence.contains(word), "{word:?} is not in: {sentence}");
    }
}

#[test]
fn the_example_is_accepted_and_its_comments_show_the_defaults() {
    let config = Config::parse(Config::example()).unwrap();
    assert_eq!(config.ports.len(), 2);

    // The commented settings, switched on, change nothing but what is computed otherwise.
    let switched_on: String = Config::example()
        .lines()
        .map(|line| match line.strip_prefix("# ") {
            Some(setting) if setting.split(' ').nth(1) == Some("=") => format!("{setting}\n"),
            _ => format!("{line}\n"),
        })
        .collect();
    assert_ne!(switched_on, Config::example());
    let spelt_out = Config::parse(&switched_on).unwrap();
    assert_eq!(spelt_out.frames, Some(16_384));
    let machine = Machine::default();
    assert_eq!(spelt_out.sizes(&machine).unwrap(), config.sizes(&machine).unwrap());
    let spelt_host = spelt_out.host.clone();
    assert_eq!(spelt_host.device_of("gw0"), config.host.device_of("gw0"));
    let same = Config {
        frames: None,
        ring: None,
        ports: config.ports.clone(),
        host: HostConfig { device: None, mtu: None, ..spelt_host },
        ..spelt_out.clone()
    };
    assert_eq!(same, config);
    assert_eq!(spelt_out.ports[0].name.as_deref(), Some("red0"));
}

#[test]
fn what_is_not_said_has_defaults() {
    let config = Config::parse("[[port]]\ninterface = \"red0\"\n").unwrap();
    assert_eq!((config.name.as_str(), &config.cores[..]), ("gw0", &[0][..]));
    assert_eq!((config.engine, config.engine.name()), (EngineChoice::Auto, None));
    assert_eq!((config.idle, config.spin_us), (Idle::Sleep, 50));
    assert_eq!(config.ports[0].label(), "red0");
    assert_eq!(config.ports[0].mode, Mode::Auto);
    assert_eq!(config.control.run_dir, Path::new("/run/peregrine"));
}

#[test]
fn what_is_said_is_taken() {
    let config = Config::parse(&format!("engine = \"ipsec-mb\"\nidle = \"spin\"\n{GOOD}")).unwrap();
    assert_eq!((config.engine.name(), config.idle), (Some("ipsec-mb"), Idle::Spin));
    for choice in EngineChoice::ALL {
        let config = Config::parse(&format!("engine = \"{}\"\n{GOOD}", choice.label())).unwrap();
        assert_eq!(config.engine, choice);
    }
    assert_eq!((config.ports[1].label(), config.ports[1].mode), ("black", Mode::Native));
}

#[test]
fn malformed_toml_names_line_and_column() {
    assert_refused("name = \"gw0\"\ncores = [0\n", &["line 2, column 11"]);
    assert_refused("näme = \"gw0\" x", &["line 1, column"]);
    assert_refused("name = \"gw0\ncores = 1", &["line 1"]);
}

#[test]
fn unknown_keys_and_words_are_named_beside_those_that_exist() {
    assert_refused(&format!("framez = 1\n{GOOD}"), &["line 1, column 1", "framez", "`frames`"]);
    assert_refused(&GOOD.replace("mode", "mood"), &["line 9", "mood", "`mode`"]);
    assert_refused(&GOOD.replace("native", "fast"), &["line 9", "fast", "`generic`"]);
    assert_refused(&format!("engine = \"openssl\"\n{GOOD}"), &["openssl", "`aws-lc`"]);
    assert_refused(&GOOD.replace("[0, 1]", "\"0\""), &["line 3", "string", "sequence"]);
    assert_refused(&GOOD.replace("[0, 1]", "[-1]"), &["line 3", "-1"]);
    assert_refused("[[port]]\nname = \"red0\"\n", &["line 1", "missing field `interface`"]);
}

#[test]
fn lists_must_not_be_empty_or_repeat() {
    assert_refused(&GOOD.replace("[0, 1]", "[]"), &["cores is empty", "cores = [0]"]);
    assert_refused(&GOOD.replace("[0, 1]", "[1, 0, 1]"), &["core 1 is listed twice"]);
    assert_refused(&GOOD.replace("[0, 1]", "[0, 4711]"), &["core 4711", "0 to 1023"]);
    assert_refused("cores = [0]", &["there is no port", "[[port]]"]);
    let many: String = (0..65).map(|i| format!("[[port]]\ninterface = \"eth{i}\"\n")).collect();
    assert_refused(&many, &["65 ports", "limit is 64"]);
}

#[test]
fn two_ports_on_one_interface_are_named() {
    let text = "[[port]]\nname = \"red0\"\ninterface = \"eth0\"\n\
                [[port]]\nname = \"red1\"\ninterface = \"eth0\"\n";
    assert_refused(text, &["port red0 and port red1 are both on interface eth0"]);
    assert_refused(
        &text.replacen("eth0", "eth1", 1).replace("red1", "red0"),
        &["two ports are named red0"],
    );
    // A port without a name has its interface's name.
    let text = "[[port]]\ninterface = \"eth0\"\n[[port]]\nname = \"eth0\"\ninterface = \"eth1\"\n";
    assert_refused(text, &["two ports are named eth0"]);
}

#[test]
fn names_keep_to_what_is_safe_as_a_directory() {
    for bad in ["", "..", "a/b", "-x", "a b", "naïve", &"x".repeat(33)] {
        assert_refused(&GOOD.replace("gw0", bad), &["name", bad, "letters, digits"]);
    }
    for bad in ["", ".", "a/b", "a b", "sixteen-letters-"] {
        assert_refused(&GOOD.replace("red0", bad), &["is not an interface name"]);
    }
    for good in ["eth0.100", "veth_1-a", "0", "eth0@x"] {
        Config::parse(&GOOD.replace("red0", good)).unwrap();
    }
}

#[test]
fn directories_are_absolute_and_leave_room_for_sockets() {
    assert_refused(&format!("{GOOD}[control]\nrun_dir = \"run\"\n"), &["run_dir run", "absolute"]);
    let long = format!("/{}", "d".repeat(100));
    assert_refused(
        &format!("{GOOD}[control]\nrun_dir = \"{long}\"\n"),
        &["too long", "at most 94"],
    );
    let longest = format!("/{}", "d".repeat(94 - "/gw0".len() - 1));
    Config::parse(&format!("{GOOD}[control]\nrun_dir = \"{longest}\"\n")).unwrap();
}

#[test]
fn sizes_that_cannot_work_are_refused() {
    for ring in ["0", "32", "1000", "131072"] {
        assert_refused(&format!("ring = {ring}\n{GOOD}"), &["ring is", "power of two from 64"]);
    }
    assert_refused(&format!("frame_size = 1024\n{GOOD}"), &["frame_size is 1024", "2048"]);
    assert_refused(&format!("frames = 800\n{GOOD}"), &["frames is 800", "at least 896"]);
    assert_refused(
        &format!("frames = 4096\nring = 2048\n{GOOD}"),
        &["frames is 4096", "rings of 2048", "at least 12800"],
    );
    assert_refused(&format!("frames = 5000000\n{GOOD}"), &["5000000", "limit is 4194304"]);
    assert_refused(&format!("spin_us = 1000001\n{GOOD}"), &["spin_us", "idle = \"spin\""]);
}

#[test]
fn what_is_not_given_of_memory_is_made_to_fit() {
    let sizes = |line: &str, queues: u32| {
        let mut machine = machine();
        machine.interfaces.iter_mut().for_each(|i| i.queues = queues);
        let config = Config::parse(&format!("{line}\n{GOOD}")).unwrap();
        config.sizes(&machine).map(|s| (s.frames, s.ring)).map_err(|e| e.to_string())
    };
    assert_eq!(sizes("", 2), Ok((16_384, 2048)));
    assert_eq!(sizes("ring = 512", 2), Ok((7168, 512)));
    assert_eq!(sizes("frames = 4096", 2), Ok((4096, 512)));
    assert_eq!(sizes("frames = 16384", 2), Ok((16_384, 2048)));
    assert_eq!(sizes("frames = 896", 2), Ok((896, 64)));
    // With three queues, one of the two workers has two of them on each port.
    assert_eq!(sizes("", 3), Ok((28_672, 2048)));
    assert_eq!(sizes("frames = 4096", 3), Ok((4096, 256)));
    let refused = sizes("frames = 896", 4).unwrap_err();
    assert!(refused.contains("the 4 queue(s) of a worker"), "{refused}");

    let config = Config::parse(GOOD).unwrap();
    assert_eq!(config.sizes(&machine()).unwrap().bytes(2), 2 * 16_384 * 2048);
}

fn machine() -> Machine {
    let interface = |name: &str, ifindex| Interface {
        name: name.to_owned(),
        ifindex,
        mtu: 1500,
        queues: 2,
        transmit_queues: 2,
        kind: None,
    };
    Machine {
        interfaces: vec![interface("lo", 1), interface("red0", 2), interface("eth1", 3)],
        cores: (0..4).chain([8]).collect(),
        cores_allowed: (0..2).collect(),
        missing: vec![],
        af_xdp: Some(true),
        memlock_bytes: Some(65_536),
        hugepages_free: Some(0),
        hugepages_total: 32,
    }
}

#[track_caller]
fn assert_unfit(text: &str, change: impl FnOnce(&mut Machine), words: &[&str]) {
    let mut machine = machine();
    change(&mut machine);
    let config = Config::parse(text).unwrap();
    let sentence = config.check(&machine).expect_err("refused").to_string();
    assert!(!sentence.contains('\n'), "one line: {sentence}");
    for word in words {
        assert!(sentence.contains(word), "{word:?} is not in: {sentence}");
    }
}

#[test]
fn a_device_that_is_to_be_made_is_none_that_is_there() {
    let made = |machine: &mut Machine| {
        let kind = Some("tun".to_owned());
        machine.interfaces.push(Interface {
            name: "pgn-gw0".to_owned(),
            kind,
            ..machine.interfaces[0].clone()
        });
    };
    let mut fit = machine();
    made(&mut fit);
    Config::parse(GOOD).unwrap().check(&fit).expect("a killed gateway's is taken over");
    let bridge = |machine: &mut Machine| {
        made(machine);
        machine.interfaces[3].kind = Some("bridge".to_owned());
    };
    assert_unfit(GOOD, bridge, &["[host]", "\"pgn-gw0\"", "bridge", "`device`"]);
    let port = format!("{GOOD}\n[host]\ndevice = \"red0\"");
    assert_unfit(&port, |_| (), &["[host]", "\"red0\"", "hardware"]);
    let group = format!("{GOOD}\n[[group]]\ndevice = \"lo\"\nif_id = 1");
    assert_unfit(&group, |_| (), &["[[group]]", "\"lo\""]);
}

#[test]
fn a_fit_machine_is_accepted() {
    Config::parse(GOOD).unwrap().check(&machine()).unwrap();
    let more_queues = |m: &mut Machine| m.interfaces[1].queues = 8;
    let mut machine = machine();
    more_queues(&mut machine);
    Config::parse(GOOD).unwrap().check(&machine).unwrap();
}

#[test]
fn an_unknown_interface_is_named_beside_those_that_exist() {
    let words = ["port black: there is no interface eth9", "here: eth1, lo, red0"];
    assert_unfit(&GOOD.replace("eth1", "eth9"), |_| (), &words);
    let many = |m: &mut Machine| {
        let template = m.interfaces[0].clone();
        let names = (10..60).map(|i| Interface { name: format!("v{i}"), ..template.clone() });
        m.interfaces = names.collect();
    };
    assert_unfit(GOOD, many, &["red0", "v10, v11", "and 26 more"]);
    assert_unfit(GOOD, |m| m.interfaces.clear(), &["interfaces here: none"]);
}

#[test]
fn a_core_that_does_not_exist_or_is_not_allowed_is_named() {
    assert_unfit(&GOOD.replace("[0, 1]", "[0, 5]"), |_| (), &["no core 5", "here: 0-3, 8"]);
    assert_unfit(&GOOD.replace("[0, 1]", "[0, 3]"), |_| (), &["core 3 exists", "cores 0-1"]);
}

#[test]
fn workers_may_share_a_queue() {
    let mut machine = machine();
    machine.interfaces[2].queues = 1;
    let config = Config::parse(GOOD).unwrap();
    config.check(&machine).unwrap();
    assert!(!config.unordered);
    assert!(Config::parse(&format!("unordered = true\n{GOOD}")).unwrap().unordered);
}

#[test]
fn queues_that_workers_could_not_send_by_are_refused() {
    let queues = |receive, transmit| {
        move |m: &mut Machine| {
            (m.interfaces[1].queues, m.interfaces[1].transmit_queues) = (receive, transmit);
        }
    };
    let words = ["port red0", "by 2 queues", "4 to receive", "ethtool -L red0", "at most 1 cores"];
    assert_unfit(GOOD, queues(4, 1), &words);
    for fits in [(1, 1), (4, 2), (2, 8)] {
        let mut machine = machine();
        queues(fits.0, fits.1)(&mut machine);
        Config::parse(GOOD).unwrap().check(&machine).unwrap();
    }
    let mut machine = machine();
    queues(4, 1)(&mut machine);
    Config::parse(&GOOD.replace("[0, 1]", "[0]")).unwrap().check(&machine).unwrap();
}

#[test]
fn an_mtu_that_does_not_fit_is_refused() {
    let jumbo = |mtu| move |m: &mut Machine| m.interfaces[1].mtu = mtu;
    assert_unfit(GOOD, jumbo(9000), &["port red0", "MTU 9000", "ip link set red0 mtu 1770"]);
    let mut machine = machine();
    jumbo(1770)(&mut machine);
    Config::parse(GOOD).unwrap().check(&machine).unwrap();
    jumbo(3496)(&mut machine);
    let large = format!("frame_size = 4096\n{GOOD}");
    Config::parse(&large).unwrap().check(&machine).unwrap();
    assert_unfit(&large, jumbo(3497), &["MTU 3497", "ip link set red0 mtu 3496"]);
}

#[test]
fn missing_rights_are_named() {
    for capability in [Capability::NetAdmin, Capability::NetRaw, Capability::Bpf] {
        let missing = |m: &mut Machine| m.missing = vec![Capability::IpcLock, capability];
        assert_unfit(GOOD, missing, &["lacks", capability.name(), "run it as root"]);
    }
    let no_lock = |m: &mut Machine| m.missing = vec![Capability::IpcLock];
    assert_unfit(GOOD, no_lock, &["67108864 bytes", "limit of 65536", "CAP_IPC_LOCK"]);
    let mut unlimited = machine();
    no_lock(&mut unlimited);
    unlimited.memlock_bytes = None;
    Config::parse(GOOD).unwrap().check(&unlimited).unwrap();
}

#[test]
fn devices_have_mtus_that_frames_hold_sealed() {
    let host = |mtu: u32, size: u32| format!("frame_size = {size}\nhost.mtu = {mtu}\n{GOOD}");
    let group = |mtu: u32| format!("{GOOD}\n[[group]]\ndevice = \"hub\"\nmtu = {mtu}");
    for fits in [host(1280, 2048), host(1771, 2048), host(3819, 4096), group(1771)] {
        Config::parse(&fits).unwrap();
    }
    for (text, words) in [
        (host(1772, 2048), ["[host]", "1280 to 1771", "frame_size"]),
        (host(9000, 4096), ["9000", "1280 to 3819", "4096"]),
        (host(1279, 2048), ["[host]", "1280 to 1771", "1279"]),
        (group(1772), ["[[group]] of device \"hub\"", "1771", "frame_size"]),
    ] {
        let sentence = Config::parse(&text).expect_err("refused").to_string();
        assert!(words.iter().all(|word| sentence.contains(word)), "{sentence}");
    }
}

#[test]
fn a_kernel_or_memory_that_cannot_is_refused() {
    assert_unfit(GOOD, |m| m.af_xdp = Some(false), &["no AF_XDP", "CONFIG_XDP_SOCKETS"]);
    let text = format!("hugepages = true\n{GOOD}");
    assert_unfit(&text, |m| m.hugepages_free = Some(31), &["32 free", "31 are", "nr_hugepages=32"]);
    let mut machine = machine();
    machine.hugepages_free = Some(32);
    Config::parse(&text).unwrap().check(&machine).unwrap();
}

#[test]
fn files_are_named_in_errors() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("gw.toml");
    let sentence = |path: &Path| Config::read(path).expect_err("refused").to_string();
    assert!(sentence(&path).contains("gw.toml: the configuration cannot be read"));
    std::fs::write(&path, "cores = []").unwrap();
    assert!(sentence(&path).contains("gw.toml: cores is empty"));
    std::fs::write(&path, [0xff, 0xfe]).unwrap();
    assert!(sentence(&path).contains("gw.toml: the configuration cannot be read"));
    std::fs::write(&path, "#".repeat(CONFIG_BYTES_MAX as usize + 1)).unwrap();
    let longer = format!("gw.toml: the configuration is longer than {CONFIG_BYTES_MAX} bytes");
    assert!(sentence(&path).contains(&longer));
    std::fs::write(&path, GOOD).unwrap();
    assert_eq!(Config::read(&path).unwrap(), Config::parse(GOOD).unwrap());
}

#[test]
fn this_machine_can_be_probed() {
    let machine = Machine::probe().unwrap();
    let lo = machine.interfaces.iter().find(|i| i.name == "lo").expect("a loopback interface");
    assert_eq!((lo.mtu, lo.ifindex), (65_536, 1));
    assert!(lo.queues >= 1);
    assert!(machine.cores_allowed.is_subset(&machine.cores) && !machine.cores.is_empty());
}

proptest! {
    #[test]
    fn any_text_gives_a_configuration_or_one_sentence(text in "\\PC*") {
        fuzz(&text);
    }

    #[test]
    fn any_damage_gives_a_configuration_or_one_sentence(
        at in 0..GOOD.len(), cut in 0..8_usize, insert in "[\\[\\]\"=\n a-z0-9-]{0,6}",
    ) {
        let end = (at + cut).min(GOOD.len());
        fuzz(&format!("{}{insert}{}", &GOOD[..at], &GOOD[end..]));
    }
}

#[test]
fn the_hosts_section_is_checked() {
    let with = |line: &str| {
        let ports = "[[port]]\ninterface = \"red0\"\n";
        Config::parse(&format!("{ports}[host]\n{line}\n")).map(|config| config.host)
    };
    assert!(!with("enable = false").unwrap().enable);
    assert_eq!(with("ike_ports = []").unwrap().ike_ports, Vec::<u16>::new());
    for bad in [
        "mtu = 1279",
        "table = 254",
        "table = 0",
        "priority = 0",
        "priority = 32767",
        "ike_ports = [0]",
        "device = \"a name\"",
        "device = \"\"",
        "unknown = 1",
    ] {
        let error = with(bad).unwrap_err().to_string();
        assert!(!error.contains('\n'), "{bad}: {error}");
    }
}
