//! The tables behind the figures: accounting, ceilings and calibration, environment.

use std::collections::BTreeMap;

use super::parts::{Table, list};
use crate::report::negotiation;
use crate::report::number;
use crate::report::svg::escape;
use crate::result::{Run, RunResult, Side, balance};

/// One table for all curves, because they have mostly the same rows.
pub(super) fn accounting(result: &RunResult) -> String {
    let mut keys: Vec<(&str, Side, &str)> = Vec::new();
    for row in result.curves.iter().flat_map(|curve| &curve.accounting) {
        let key = (row.place.as_str(), row.side, row.name.as_str());
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    if keys.is_empty() {
        return "<p class=\"bad\">No accounting was taken.</p>\n".into();
    }
    // Places in order of appearance, so that rows only a later curve has join their place.
    let places: Vec<&str> = keys.iter().map(|(place, _, _)| *place).collect();
    let rank = |place: &str| places.iter().position(|other| *other == place);
    keys.sort_by_key(|(place, side, _)| (rank(place), *side == Side::Out));

    let mut header = vec!["place", "side", "what"];
    header.extend(result.curves.iter().map(|curve| curve.name.as_str()));
    let mut table = Table::new("Packets of the whole ramp, probes included", &header);
    for (place, side, name) in keys {
        let side_name = if side == Side::In { "in" } else { "out" };
        let mut cells = vec![place.to_owned(), side_name.to_owned(), name.to_owned()];
        cells.extend(result.curves.iter().map(|curve| {
            let mut same = curve
                .accounting
                .iter()
                .filter(|row| row.place == place && row.side == side && row.name == name)
                .peekable();
            if same.peek().is_none() {
                return "–".into();
            }
            number::count(same.map(|row| row.packets).sum())
        }));
        table.row(&cells);
    }
    let open: Vec<&str> = result
        .curves
        .iter()
        .filter(|curve| curve.accounting.is_empty() || !balance(&curve.accounting).is_empty())
        .map(|curve| curve.name.as_str())
        .collect();
    let verdict = if open.is_empty() {
        "<p class=\"good\">Closes to the packet: at every place, in = out.</p>\n".to_owned()
    } else {
        format!("<p class=\"bad\">Does not close for: {}.</p>\n", escape(&open.join(", ")))
    };
    table.finish() + &verdict
}

/// Tunnels that were negotiated, or nothing.
pub(super) fn negotiations(result: &RunResult) -> String {
    let mut table = Table::new(negotiation::CAPTION, &negotiation::HEADER);
    negotiation::rows(result).iter().for_each(|row| table.row(row));
    if table.is_empty() {
        return String::new();
    }
    list("negotiated", &negotiation::sentences(result)) + &table.finish()
}

pub(super) fn limits(result: &RunResult) -> String {
    let mut html = String::new();
    let mut ceilings = Table::new(
        "Ceilings: what the run could not exceed whatever the gateway does",
        &["ceiling", "L2 rate, all ports", "packets per second", "direction"],
    );
    for ceiling in &result.ceilings {
        ceilings.row(&[
            ceiling.name.clone(),
            number::bps(ceiling.l2_bps),
            ceiling.pps.map_or("–".into(), number::pps),
            ceiling.direction.map_or("any", |direction| direction.as_str()).into(),
        ]);
    }
    if !ceilings.is_empty() {
        html.push_str(&ceilings.finish());
    }
    let Some(calibration) = &result.calibration else {
        return html
            + "<p class=\"bad\">No calibration: whether the generator was the limit is \
                       not known.</p>\n";
    };
    html.push_str(&format!(
        "<p>Loop of {} without a gateway: {} ({}) per port without loss, {} ({}) at most; {}{}.\
         </p>\n",
        escape(&calibration.measured_at),
        number::bps(calibration.zero_loss.l2_bps),
        number::pps(calibration.zero_loss.pps),
        number::bps(calibration.maximum.l2_bps),
        number::pps(calibration.maximum.pps),
        if calibration.clean { "clean" } else { "not clean: the loop itself disturbs frames" },
        calibration.latency.map_or(String::new(), |latency| format!(
            "; latency of the loop p50 {}, p99 {}",
            number::microseconds(latency.p50_us),
            number::microseconds(latency.p99_us)
        )),
    ));
    let mut points = Table::new("Calibration points, per port", &["offered", "received", "loss"]);
    for point in &calibration.points {
        points.row(&[
            number::bps(point.offered.l2_bps),
            number::bps(point.received.l2_bps),
            number::percent(point.loss_ratio * 100.0),
        ]);
    }
    if !points.is_empty() {
        html.push_str(&points.finish());
    }
    html
}

pub(super) fn environment(run: &Run) -> String {
    let env = &run.environment;
    let joined = |map: &BTreeMap<String, String>| {
        map.iter().map(|(key, value)| format!("{key}: {value}")).collect::<Vec<_>>().join("; ")
    };
    let mut table = Table::new("The machine and the software", &["what", "value"]).plain();
    let mut row = |name: &str, value: String| table.row(&[name.to_owned(), value]);
    row("kernel", env.kernel.clone());
    row("command line", env.cmdline.clone());
    row("processor", format!("{}, {} cores", env.cpu.model, env.cpu.cores));
    row("governor", env.cpu.governor.clone());
    row("mitigations", joined(&env.cpu.mitigations));
    row("versions", joined(&env.versions));
    for (link, offloads) in &env.offloads {
        row(&format!("offloads of {link}"), joined(offloads));
    }
    row("sysctl", joined(&env.sysctl));
    row("recipe hash", env.recipe_hash.clone());
    row("seed", env.seed.to_string());
    row("wall clock", format!("{} to {}", env.started_at, env.finished_at));
    for (name, value) in &env.other {
        row(name, value.clone());
    }
    table.finish()
}
