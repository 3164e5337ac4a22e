//! The page: complete, self-contained, and safe from what a result may contain.

use super::*;
use crate::plot::{Named, assemble};
use crate::report::svg;
use crate::result::{Ceiling, Label, example};

fn page_of(run: &Run) -> String {
    let plot = assemble(&[Named { name: "run", run }]).unwrap();
    page(run, &plot, &svg::draw(&plot))
}

#[test]
fn the_page_needs_nothing_but_itself() {
    let page = page_of(&example::run());
    for forbidden in ["src=", "@import", "url(http", "<link", "fetch("] {
        assert!(!page.contains(forbidden), "{forbidden}");
    }
    // The only addresses are names of XML namespaces.
    for (at, _) in page.match_indices("http") {
        assert!(page[at..].starts_with("http://www.w3.org/2000/svg"), "{}", &page[at..at + 40]);
    }
}

#[test]
fn every_part_is_there() {
    let mut run = example::run();
    run.result.ceilings =
        vec![Ceiling { name: "loop".into(), l2_bps: 5e9, pps: Some(6e5), direction: None }];
    run.result.curves[0].conclusion.labels = vec![Label::Interrupted];
    run.result.notes = vec!["stopped by hand".into()];
    let page = page_of(&run);
    for part in [
        "<h1>Example</h1>",
        "end to end over veth",
        "<li>stopped by hand</li>",
        "<li>500 tunnels: interrupted</li>",
        "<svg",
        "Closes to the packet",
        "5.00 Gbps",
        "Example CPU &lt;9000&gt; &amp; co, 2 cores",
        "download=\"result.json\"",
        "download=\"samples.csv\"",
        "download=\"env.json\"",
        OTHER_HARDWARE,
    ] {
        assert!(page.contains(part), "{part}");
    }
    assert_eq!(page.matches("<caption>").count(), page.matches("<table ").count());
    assert_eq!(page.matches("<th scope=\"row\">20</th>").count(), 1);
}

/// Each direction has what its own port was asked for; a file that has it not has a dash there.
#[test]
fn directions_have_loads_of_their_own() {
    let mut run = example::run();
    let step = &mut run.result.curves[0].steps[0];
    let mut other = step.directions[0].clone();
    other.name = "P1→P0".into();
    other.offered = Some(crate::traffic::rate_of_bits(2e8, 121.0));
    step.directions.push(other);
    let row = |page: &str, name: &str| {
        let cell = format!("<td>{name}</td>");
        let at = page.find(&cell).unwrap_or_else(|| panic!("{name}: {page}")) + cell.len();
        page[at..].split("</tr>").next().unwrap().to_owned()
    };
    let page = page_of(&run);
    let (one, two) = (row(&page, "P0→P1"), row(&page, "P1→P0"));
    assert!(one.contains("23.54 kpps") && two.contains("200.00 kpps"), "{one}\n{two}");
    assert!(row(&page, "all").contains("23.54 kpps / 200.00 kpps"));
    for direction in &mut run.result.curves[0].steps[0].directions {
        direction.offered = None;
    }
    let page = page_of(&run);
    assert!(row(&page, "all").contains("23.54 kpps") && !row(&page, "P1→P0").contains("kpps"));
}

#[test]
fn text_from_files_cannot_become_markup() {
    let mut run = example::run();
    let evil = "</script><script>alert(1)</script>";
    run.result.title = evil.into();
    run.result.curves[0].name = evil.into();
    run.samples.iter_mut().for_each(|sample| sample.curve = evil.into());
    run.environment.kernel = evil.into();
    let page = page_of(&run);
    assert!(!page.contains("<script>alert"));
    assert!(!page.contains("</script><script>a"));
}

#[test]
fn open_books_are_said_to_be_open() {
    let mut run = example::run();
    run.result.curves[0].accounting[0].packets += 1;
    let page = page_of(&run);
    assert!(page.contains("Does not close for: 500 tunnels."));
    assert!(!page.contains("Closes to the packet"));
    run.result.curves[0].accounting.clear();
    assert!(page_of(&run).contains("No accounting was taken."));
}

#[test]
fn the_downloads_are_the_files() {
    let run = example::run();
    let page = page_of(&run);
    let start = page.find("data:text/csv;charset=utf-8,").unwrap();
    let encoded = &page[start + 28..start + page[start..].find('"').unwrap()];
    let mut bytes = Vec::new();
    let mut rest = encoded.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next().unwrap(), rest.next().unwrap()];
                u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap()
            }
            byte => byte,
        });
    }
    assert_eq!(String::from_utf8(bytes).unwrap(), write_samples(&run.samples));
}
