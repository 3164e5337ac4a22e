//! The lab as its user meets it: a command, a folder, and a machine that is as it was before.

mod gateway;

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use lab::result::{Direction, Label, Run, balance, read};

/// `peregrine lab run bf3-test1` with few tunnels and whatever else.
fn lab(out: &Path, options: &str) -> Command {
    lab_of("bf3-test1 --tunnels 5", out, options)
}

/// `peregrine lab run` with a recipe and whatever else.
fn lab_of(recipe: &str, out: &Path, options: &str) -> Command {
    let mut command = gateway::peregrine_bound();
    command.args(["lab", "run"]).args(recipe.split_whitespace()).arg("--out").arg(out);
    command.args(options.split_whitespace());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    command
}

/// Runs to the end; returns the process id, the exit code and what was written.
fn finished(out: &Path, child: Child) -> (u32, Option<i32>, Run) {
    let pid = child.id();
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let run = read(out).unwrap_or_else(|error| panic!("{error}\n{errors}"));
    assert_nothing_is_left(pid);
    (pid, output.status.code(), run)
}

/// No namespace, no instance and no scratch folder of the process `pid`.
fn assert_nothing_is_left(pid: u32) {
    let names = |directory: &str| -> Vec<String> {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    };
    for (directory, prefix) in [
        ("/run/netns", format!("pg{pid}-")),
        ("/run/peregrine", format!("lab-{pid}-")),
        ("/var/lib/peregrine", format!("lab-{pid}-")),
        ("/tmp", format!("peregrine-lab-{pid}-")),
    ] {
        let left: Vec<_> =
            names(directory).into_iter().filter(|name| name.starts_with(&prefix)).collect();
        assert!(left.is_empty(), "{directory}: {left:?}");
    }
}

/// All accounts of all curves close, and no label says otherwise.
fn assert_accounted(run: &Run) {
    assert_accounted_between(run, ["gw0", "gw1"]);
}

/// The same of gateways with other names.
fn assert_accounted_between(run: &Run, [near, far]: [&str; 2]) {
    for curve in &run.result.curves {
        assert_eq!(balance(&curve.accounting), [], "{:#?}", curve.accounting);
        assert!(!curve.conclusion.labels.contains(&Label::Unaccounted));
        for place in ["path", near, far] {
            assert!(curve.accounting.iter().any(|row| row.place == place), "{place} is missing");
        }
    }
}

#[test]
fn a_light_load_in_both_directions_arrives_and_is_accounted_for() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("light");
    let options = "--directions uni,both --steps 2 --step-time 1s --max 2kpps --json";
    let (_, code, run) = finished(&out, lab(&out, options).spawn().unwrap());
    assert_eq!(code, Some(0));
    assert_eq!(run.result.curves.len(), 2);
    for curve in &run.result.curves {
        assert_eq!((curve.tunnels, curve.steps.len()), (5, 2));
        let senders = curve.direction.senders() as usize;
        for step in &curve.steps {
            assert_eq!(step.directions.len(), senders);
            for direction in &step.directions {
                // Some frames may be lost on a machine that others use too; most must arrive.
                let frames = direction.frames;
                // As many frames from either port, though those of one are longer.
                let asked = 1000 * u64::from(step.step);
                assert_eq!(frames.expected, asked);
                assert_eq!(direction.offered.map(|rate| rate.pps.round() as u64), Some(asked));
                assert!(frames.received * 2 > frames.expected);
                assert_eq!((frames.corrupted, frames.misrouted, frames.duplicated), (0, 0, 0));
                assert!(direction.latency.is_some());
            }
        }
    }
    assert_eq!(run.result.curves[1].direction, Direction::Bidirectional);
    assert_accounted(&run);
    let calibration = run.result.calibration.as_ref().expect("a calibration");
    assert!(calibration.maximum.pps > 0.0 && calibration.points.len() == 10);
    assert_eq!(run.result.ceilings.len(), 2);
    assert!(run.environment.versions.contains_key("crypto engine"));
    assert!(!run.environment.offloads.is_empty() && !run.samples.is_empty());
    for file in ["plot.svg", "report.html", "result.json", "samples.csv", "env.json"] {
        assert!(out.join(file).metadata().is_ok_and(|file| file.len() > 0), "{file}");
    }
}

#[test]
fn an_overload_is_accounted_for_to_the_packet() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("heavy");
    let options = "--directions both --steps 1 --step-time 2s --max 20gbps --json";
    let (_, code, run) = finished(&out, lab(&out, options).spawn().unwrap());
    assert_eq!(code, Some(0), "{:#?}", run.result.curves[0].accounting);
    assert_accounted(&run);
    let step = &run.result.curves[0].steps[0];
    assert!(step.loss_ratio > 0.0 && step.generator_limited, "{step:?}");
    // The ports' frames differ in size, and what the loop did not lose is what it was offered.
    for point in run.result.calibration.iter().flat_map(|calibration| &calibration.points) {
        let arrived = point.received.l2_bps / point.offered.l2_bps;
        assert!(point.loss_ratio > 0.0 || (arrived - 1.0).abs() < 0.2, "{point:?}");
    }
}

/// Over a router, and over switches to two workers with SAs of their own: a light load arrives, and
/// of an overload every packet is accounted for, those that the kernels in between lose among them.
#[test]
fn routed_and_per_cpu_tests_run_and_are_accounted_for() {
    let folder = tempfile::tempdir().unwrap();
    for (name, recipe, gateways) in
        [("routed", "bf3-test4 --tunnels 6", ["gw0", "gw1"]), ("pcpu", "pcpu", ["west", "east"])]
    {
        let out = folder.path().join(name);
        let options = "--directions both --steps 1 --step-time 1s --max 10mbps --json";
        let (_, code, run) = finished(&out, lab_of(recipe, &out, options).spawn().unwrap());
        assert_eq!(code, Some(0), "{name}");
        assert_accounted_between(&run, gateways);
        for direction in &run.result.curves[0].steps[0].directions {
            let frames = direction.frames;
            assert!(frames.received * 2 > frames.expected && frames.expected > 500, "{frames:?}");
            assert_eq!((frames.corrupted, frames.misrouted, frames.duplicated), (0, 0, 0));
        }
        let out = folder.path().join(format!("{name}-heavy"));
        let options = "--directions both --steps 1 --step-time 2s --max 20gbps --json";
        let (_, code, run) = finished(&out, lab_of(recipe, &out, options).spawn().unwrap());
        assert_eq!(code, Some(0), "{name}: {:#?}", run.result.curves[0].accounting);
        assert_accounted_between(&run, gateways);
    }
}

#[test]
fn an_interrupted_run_writes_what_it_has_and_cleans_up() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("cut");
    let options = "--directions uni --steps 3 --step-time 120s --max 5mbps";
    let mut child = lab(&out, options).spawn().unwrap();
    // Not before the ramp runs, of which the lab says the curve's name and a colon.
    let lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let (say, said) = mpsc::channel();
    std::thread::spawn(move || lines.for_each(|line| drop(say.send(line))));
    let mut said = std::iter::from_fn(|| said.recv_timeout(Duration::from_secs(90)).ok());
    assert!(said.any(|line| line.ends_with(':')), "no ramp began");
    std::thread::sleep(Duration::from_secs(1));
    let pid = rustix::process::Pid::from_child(&child);
    // As a terminal does: to everything that belongs to the foreground.
    rustix::process::kill_process_group(pid, rustix::process::Signal::INT).unwrap();
    let begin = Instant::now();
    let (_, code, run) = finished(&out, child);
    assert!(begin.elapsed() < Duration::from_secs(60));
    assert_eq!(code, Some(130));
    assert!(run.result.notes.iter().any(|note| note.contains("interrupted")));
    let [curve] = &run.result.curves[..] else { panic!("one curve: {:#?}", run.result.notes) };
    assert!(curve.conclusion.labels.contains(&Label::Interrupted));
    assert_accounted(&run);
}

/// The benches of a table are in its process group, and end before it does.
#[test]
fn a_table_that_is_interrupted_at_its_first_bench_is_written_all_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("table");
    let mut child = lab_of("vpp-single-tunnel", &out, "--json").spawn().unwrap();
    let end = Instant::now() + Duration::from_secs(30);
    while !out.exists() {
        assert!(Instant::now() < end, "it made no folder");
        std::thread::sleep(Duration::from_millis(20));
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process_group(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let table = std::fs::read_to_string(out.join("matrix.json")).unwrap();
    assert!(table.contains("The run was interrupted"), "{table}");
    assert!(!table.contains("failed") && out.join("matrix.html").exists(), "{table}");
    assert!(!out.join("veth").exists());
}

/// Starts `peregrine bench`, and interrupts it as a terminal does: a little after it has said `words`, or begun if they are
/// empty. Its exit code and what it printed.
fn interrupted_bench(arguments: &str, words: &str) -> (Option<i32>, String) {
    let mut command = Command::new(gateway::PEREGRINE);
    command.env("PEREGRINE_PRELOAD", gateway::preload());
    command.arg("bench").args(arguments.split_whitespace()).process_group(0);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut told = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(words.is_empty() || told.any(|line| line.contains(words)), "{arguments}: {words}");
    std::thread::sleep(Duration::from_secs(2));
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process_group(pid, rustix::process::Signal::INT).unwrap();
    let begin = Instant::now();
    told.for_each(drop);
    let output = child.wait_with_output().unwrap();
    assert!(begin.elapsed() < Duration::from_secs(60), "{arguments}: {:?}", begin.elapsed());
    assert_nothing_is_left(pid.as_raw_nonzero().get() as u32);
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn benches_of_requests_end_between_two_of_them_and_print_what_they_have() {
    let control = "control --install 100 --idle --rekeys 20 --rekey-time 3600";
    let (code, text) = interrupted_bench(control, "20 rekeyings per second");
    assert_eq!(code, Some(130), "{text}");
    assert!(text.contains("installed in") && text.contains("of 20 wanted"), "{text}");
    // The client behind the preload library hears nothing of the terminal.
    for options in ["", "--direct"] {
        let xfrm = format!("xfrm --sas 0 --workers idle --rounds 10000 {options}");
        let (code, text) = interrupted_bench(&xfrm, "10000 rounds");
        assert_eq!(code, Some(130), "{text}");
        assert!(text.contains("one synchronous client"), "{text}");
    }
}

/// VPP is in the terminal's process group, and is gone before whoever waits for it knows why.
#[test]
fn a_bench_of_vpp_that_is_interrupted_says_so_although_vpp_has_ended() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["vpp", "vppctl"] {
        let path = folder.path().join(name);
        std::fs::write(&path, "#!/bin/sh\nexec sleep 60\n").unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    }
    let vpp = folder.path().join("vpp");
    let arguments = format!("vpp --vpp {} --tunnels 1 --sizes 64 --directions seal", vpp.display());
    let (code, text) = interrupted_bench(&arguments, "");
    assert_eq!(code, Some(130), "{text}");
    assert!(text.contains("VPP's over ours"), "{text}");
}

#[test]
fn what_cannot_be_run_is_said_before_anything_is_made() {
    for (options, words) in [
        ("bf3-test9", "bf3-test0"),
        ("bf3-test1 --tunnels 0", "tunnels"),
        ("bf3-test1 --max fast", "500mbps"),
        ("bf3-test1 --mix 12", "60"),
        ("bf3-test1 --shards 2", "--keys ike"),
        ("vpp-10k --shards 2", "--shards"),
        ("vpp-single-tunnel --responder any", "--responder"),
        ("vpp-10k --daemon-root /tmp", "--daemon-root"),
        ("vpp-10k --show-sas", "--show-sas"),
        ("./no-such-recipe.toml", "no-such-recipe.toml"),
    ] {
        let output = Command::new(gateway::PEREGRINE)
            .args(["lab", "run"])
            .args(options.split_whitespace())
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{options}: {errors}");
        assert!(errors.contains(words), "{options}: {errors}");
    }
}
