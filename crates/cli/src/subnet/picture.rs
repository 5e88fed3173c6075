//! Draws a subnet as SVG: adapters below, switches above them in rows by their distance from the
//! next adapter, and lines for links. The principal function is [`svg`].

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;

use serde_json::Value;

use super::{list, text};

const WIDTH: usize = 110;
const HEIGHT: usize = 110;
const MARGIN: usize = 70;

/// The picture of a subnet, as `softhca subnet --json` shows it.
pub(super) fn svg(nodes: &Value) -> String {
    let links = links(nodes);
    let places = places(nodes, &links);
    let widest = places.values().map(|(x, _)| *x).max().unwrap_or(0);
    let highest = places.values().map(|(_, y)| *y).max().unwrap_or(0);
    let (width, height) = (widest + MARGIN, highest + MARGIN);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"12\" text-anchor=\"middle\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    draw_links(&mut svg, &links, &places);
    for node in list(nodes) {
        let Some((x, y)) = places.get(text(&node["name"])) else { continue };
        draw_node(&mut svg, node, *x, *y);
    }
    svg + "</svg>\n"
}

/// A link: its ends, and what is said about it.
struct DrawnLink<'a> {
    ends: [&'a str; 2],
    up: bool,
    title: String,
}

/// Each link once.
fn links(nodes: &Value) -> Vec<DrawnLink<'_>> {
    let mut links = Vec::new();
    for node in list(nodes) {
        let own = text(&node["name"]);
        for port in list(&node["ports"]) {
            let Some((peer, far)) = port["peer"].as_str().and_then(|peer| peer.rsplit_once('[')) else { continue };
            let far = far.trim_end_matches(']');
            let near = port["port"].to_string();
            if (own, near.as_str()) > (peer, far) {
                continue;
            }
            let state = if port["cut"] == true { "cut" } else { text(&port["state"]) };
            let title = format!("{own}[{near}] - {peer}[{far}]: {state}, {}", text(&port["rate"]));
            links.push(DrawnLink { ends: [own, peer], up: state == "ACTIVE", title });
        }
    }
    links
}

/// The middle of each node.
fn places<'a>(nodes: &'a Value, links: &[DrawnLink<'a>]) -> HashMap<&'a str, (usize, usize)> {
    let rows = rows(nodes, links);
    let mut by_row: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
    for node in list(nodes) {
        let name = text(&node["name"]);
        by_row.entry(rows.get(name).copied().unwrap_or(0)).or_default().push(name);
    }
    let most = by_row.values().map(Vec::len).max().unwrap_or(0).max(1);
    let top = by_row.keys().last().copied().unwrap_or(0);
    let mut places: HashMap<&str, (usize, usize)> = HashMap::new();
    for (row, mut names) in by_row {
        // Near the nodes below it that it is linked with.
        names.sort_by_cached_key(|name| middle_below(name, links, &places));
        let step = most * WIDTH / names.len();
        for (nth, name) in names.into_iter().enumerate() {
            places.insert(name, (MARGIN + step / 2 + nth * step - WIDTH / 2, MARGIN + (top - row) * HEIGHT));
        }
    }
    places
}

/// The mean place of the neighbours that have one.
fn middle_below(name: &str, links: &[DrawnLink<'_>], places: &HashMap<&str, (usize, usize)>) -> usize {
    let others = links.iter().filter_map(|link| match link.ends {
        [one, other] if one == name => Some(other),
        [other, one] if one == name => Some(other),
        _ => None,
    });
    let found: Vec<usize> = others.filter_map(|other| places.get(other)).map(|(x, _)| *x).collect();
    found.iter().sum::<usize>() / found.len().max(1)
}

/// The row of each node: adapters and routers are in row 0, a switch is one above its lowest
/// neighbour.
fn rows<'a>(nodes: &'a Value, links: &[DrawnLink<'a>]) -> HashMap<&'a str, usize> {
    let ends = list(nodes).filter(|node| node["kind"] != "switch").map(|node| (text(&node["name"]), 0));
    let mut rows: HashMap<&str, usize> = ends.collect();
    let mut row = 0;
    loop {
        let reached = links.iter().flat_map(|link| [(link.ends[0], link.ends[1]), (link.ends[1], link.ends[0])]);
        let next: Vec<&str> = reached
            .filter(|(from, to)| rows.get(from) == Some(&row) && !rows.contains_key(to))
            .map(|(_, to)| to)
            .collect();
        if next.is_empty() {
            return rows;
        }
        row += 1;
        rows.extend(next.into_iter().map(|name| (name, row)));
    }
}

/// Links between the same two nodes are drawn beside each other.
fn draw_links(svg: &mut String, links: &[DrawnLink<'_>], places: &HashMap<&str, (usize, usize)>) {
    let mut parallel: HashMap<[&str; 2], usize> = HashMap::new();
    for link in links {
        let mut pair = link.ends;
        pair.sort_unstable();
        let nth = parallel.entry(pair).or_default();
        let aside = (*nth).div_ceil(2) * 8;
        let shift = |x: usize| if nth.is_multiple_of(2) { x + aside } else { x.saturating_sub(aside) };
        let [Some((x1, y1)), Some((x2, y2))] = link.ends.map(|end| places.get(end)) else { continue };
        let colour = if link.up { "#4a7" } else { "#c33\" stroke-dasharray=\"4 4" };
        let (x1, x2) = (shift(*x1), shift(*x2));
        let _ = writeln!(
            svg,
            "<line x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\" stroke-width=\"2\" stroke=\"{colour}\">\
             <title>{}</title></line>",
            escaped(&link.title)
        );
        *nth += 1;
    }
}

fn draw_node(svg: &mut String, node: &Value, x: usize, y: usize) {
    let name = escaped(text(&node["name"]));
    let lids: Vec<String> = list(&node["ports"])
        .filter_map(|port| port["lid"].as_u64())
        .filter(|lid| *lid != 0)
        .map(|lid| lid.to_string())
        .collect();
    let label = if lids.is_empty() { String::new() } else { format!("LID {}", lids.join(", ")) };
    let is_manager = list(&node["ports"]).any(|port| port["manager"] == true);
    let fill = if is_manager {
        "#fd8"
    } else if node["kind"] == "switch" {
        "#cdf"
    } else {
        "#eee"
    };
    let round = if node["kind"] == "switch" { 4 } else { 18 };
    let (left, top) = (x.saturating_sub(45), y.saturating_sub(18));
    let _ = writeln!(
        svg,
        "<rect x=\"{left}\" y=\"{top}\" width=\"90\" height=\"36\" rx=\"{round}\" fill=\"{fill}\" stroke=\"#555\"/>\n\
         <text x=\"{x}\" y=\"{}\">{name}</text>\n<text x=\"{x}\" y=\"{}\" font-size=\"10\">{label}</text>",
        y - 2,
        y + 12
    );
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_node_and_link_is_drawn_once_and_names_are_escaped() {
        let svg = svg(&super::super::tests::nodes());
        assert_eq!((svg.matches("<line").count(), svg.matches("rx=").count()), (2, 3), "{svg}");
        assert!(svg.contains(">H&lt;2&gt;</text>") && svg.contains("stroke-dasharray"), "{svg}");
        assert!(svg.contains("LID 2") && svg.contains("#fd8"), "{svg}");
    }

    #[test]
    fn switches_are_above_their_adapters() {
        let nodes = super::super::tests::nodes();
        let links = links(&nodes);
        let places = places(&nodes, &links);
        assert!(places["S1"].1 < places["H1"].1 && places["H1"].1 == places["H<2>"].1);
        assert_ne!(places["H1"].0, places["H<2>"].0);
    }
}
