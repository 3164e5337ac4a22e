//! The page of the benches: complete, and honest about what was not measured.

use super::*;

fn bench() -> Bench {
    let mut figures = Figures::default();
    for (tunnels, cycles) in [(1, 200.0), (10_000, 300.0), (50_000, 900.0)] {
        for size in ["114", "1428", "imix1"] {
            let name = |what| format!("path/policy/seal/{tunnels}/{size}/{what}");
            figures.add(name("cycles"), cycles, "cycles");
            let in_turns = format!("path-turns/policy/seal/{tunnels}/{size}/cycles");
            figures.add(in_turns, cycles, "cycles");
            figures.add(name("beside_ns"), cycles / 20.0, "ns");
            figures.add(format!("cipher/seal/{tunnels}/{size}/cycles"), 90.0, "cycles");
        }
    }
    let machine = vec![("processor".to_owned(), "<one>".to_owned())];
    Bench { machine, figures, notes: vec!["cores were not measured".to_owned()] }
}

#[test]
fn the_folder_holds_figures_pictures_and_the_page() {
    let folder = tempfile::tempdir().unwrap();
    let drawn = write(folder.path(), &bench()).unwrap();
    for name in [FIGURES_FILE, PAGE_FILE, "seal-tunnels-imix1.svg", "seal-sizes-1.svg"] {
        assert!(drawn.files.contains(&folder.path().join(name)), "{name}: {drawn:?}");
    }
    assert!(!folder.path().join("open-sizes-1.svg").exists(), "nothing of ours is in it");
    let page = std::fs::read_to_string(folder.path().join(PAGE_FILE)).unwrap();
    assert!(page.contains("&lt;one&gt;") && page.contains("<li>cores were not measured</li>"));
    assert!(page.contains("not measured") && page.contains("NOT MET"));
    for forbidden in ["src=", "@import", "<link"] {
        assert!(!page.contains(forbidden), "{forbidden}");
    }
    let ids: Vec<&str> = page.split(" id=\"").skip(1).filter_map(|r| r.split('"').next()).collect();
    let unique: std::collections::BTreeSet<&&str> = ids.iter().collect();
    assert_eq!(ids.len(), unique.len(), "{ids:?}");
}

#[test]
fn what_was_measured_both_ways_and_at_random_is_drawn_beside_vpp() {
    let mut figures = bench().with_vpp();
    for (above, direction) in [("path", "open"), ("path-turns", "both")] {
        for size in ["64", "491", "1428"] {
            figures.add(format!("{above}/p2p/{direction}/10000/{size}/cycles"), 300.0, "cycles");
        }
    }
    let charts = charts(&figures);
    let of = |name: &str| &charts.iter().find(|(file, _)| file == name).unwrap().1;
    for (name, theirs) in [("open-sizes-random", 2593.0), ("both-sizes-10000", 3639.0)] {
        let of_vpp = of(name).lines.iter().find(|line| line.label == "VPP, point-to-point");
        assert!(of_vpp.unwrap().points.contains(&(1428.0, theirs)), "{name}");
    }
    let conditions = of("open-sizes-random").footer.join("");
    assert!(conditions.contains("consecutive packets use random tunnels"), "{conditions}");
}

#[test]
fn no_legend_cuts_a_name() {
    let mut bench = bench();
    let selections = ["plain", "policy", "policy-cached", "policy-uncached", "p2p", "p2mp"];
    let ways = |one| ["seal", "open", "both"].map(|direction| (one, direction));
    for (selection, direction) in selections.iter().flat_map(ways) {
        for tunnels in ["1", "10000", "50000"] {
            for size in ["114", "1428", "imix1"] {
                for of in ["path", "path-turns"] {
                    let name = format!("{of}/{selection}/{direction}/{tunnels}/{size}/cycles");
                    bench.figures.add(name, 300.0, "cycles");
                }
            }
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let drawn = write(folder.path(), &bench).unwrap();
    let is_picture = |file: &&std::path::PathBuf| file.extension().is_some_and(|ext| ext == "svg");
    let pictures: Vec<_> = drawn.files.iter().filter(is_picture).collect();
    assert!(pictures.len() >= 10, "{pictures:?}");
    for picture in pictures {
        let text = std::fs::read_to_string(picture).unwrap();
        assert!(!text.contains('…'), "{}", picture.display());
    }
}

#[test]
fn aims_are_judged_with_vpp_beside_them() {
    let judged = bench().judged();
    let of = |figure: &str| judged.iter().find(|judged| judged.aim.figure == figure).unwrap();
    let beside = of("path/policy/seal/1/*/beside_ns");
    assert_eq!((beside.value, beside.is_met()), (Some(10.0), None));
    assert_eq!(aim_cells(beside)[4..], ["–", "not measured: 64, 200, 491, 1000"]);
    // 870 / 300, 2525 / 300 and 2011 / 300: the worst counts.
    let against = of("vpp/seal/policy-fastpath/10000/*/cycles");
    assert_eq!((against.is_met(), against.at.as_deref()), (Some(false), Some("114")));
    assert_eq!(aim_cells(against)[2], "2.9 ×");
    assert_eq!(of("cores/many/ratio").is_met(), None);
    let scale =
        judged.iter().find(|judged| judged.aim.text.contains("policy mode, worst")).unwrap();
    assert_eq!(aim_cells(scale)[5], "NOT MET");
}

#[test]
fn numbers_have_three_digits() {
    let texts = [0.0, 0.8, 8.4167, 20.0, 24.96, 104.4, 35_000.0].map(number);
    assert_eq!(texts, ["0", "0.8", "8.42", "20", "25", "104", "35000"]);
    // A loss, however small.
    assert_eq!([0.0024, 1e-5, 1.234e-7].map(number), ["0.0024", "0.00001", "0.000000123"]);
}
