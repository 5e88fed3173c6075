//! Tests of both forms.

use super::*;
use proptest::prelude::*;
use std::net::IpAddr;

const TEXT: &str = "\
# a comment
vendid=0x2c9
devid=0xb924
sysimgguid=0x200000
switchguid=0x200001(200001)
Switch\t8 \"S1\"\t\t# \"leaf 1\" base port 0 lid 3 lmc 0
[1]\t\"H1\"[1](300001) \t\t# \"host 1\" lid 4 4xQDR
[2]\t\"H2\"
[8]\t\"S2\"[8]\tw=8 e=2

caguid=0x300000
Ca\t2 \"H1\"\t\t# \"host 1\"
# address of a host
# address 10.0.0.1 fd00::1
[1](300001) \t\"S1\"[1]\t\t# lid 4 lmc 0 \"leaf 1\" lid 3 4xQDR

Hca 1 \"H2\"

Switch 8 \"S2\"
";

const TOML: &str = r#"
[[node]]
name = "S1"
kind = "switch"
ports = 8
guid = "0x200001"
links = { 1 = "H1[1] 4xEDR" }

[[node]]
name = "H1"
kind = "hca"
ports = 2
guid = 0x300000
address = "10.0.0.1"
"#;

#[test]
fn the_text_form_of_ibnetdiscover_and_ibsim() {
    let topology = Topology::from_text(TEXT).unwrap();
    let switch = topology.node("S1").unwrap();
    assert_eq!((switch.kind, switch.ports, switch.guid, switch.lid), (NodeType::Switch, 8, Some(0x20_0001), Some(3)));
    assert_eq!((switch.system_guid, switch.vendor_id, switch.device_id), (Some(0x20_0000), Some(0x2c9), Some(0xb924)));
    assert_eq!(switch.description.as_deref(), Some("leaf 1"));
    let ends: Vec<_> = switch.links.iter().map(|link| (link.port, link.peer.as_str(), link.peer_port)).collect();
    assert_eq!(ends, [(1, "H1", 1), (2, "H2", 1), (8, "S2", 8)]);
    assert_eq!((switch.links[2].width, switch.links[2].speed), (Some(Width::X12), Some(Speed::Edr)));
    let host = &topology.node("H1").unwrap().links[0];
    assert_eq!((host.guid, host.lid, host.lmc), (Some(0x30_0001), Some(4), Some(0)));
    assert_eq!((host.width, host.speed), (Some(Width::X4), Some(Speed::Qdr)));
    let addresses = &topology.node("H1").unwrap().addresses;
    assert_eq!(*addresses, ["10.0.0.1".parse::<IpAddr>().unwrap(), "fd00::1".parse().unwrap()]);
    let completed = &topology.node("S2").unwrap().links[0];
    assert_eq!((completed.port, completed.peer.as_str(), completed.width), (8, "S1", Some(Width::X12)));
}

#[test]
fn what_is_written_is_read_again() {
    for topology in [Topology::from_text(TEXT).unwrap(), Topology::from_toml(TOML).unwrap()] {
        assert_eq!(Topology::from_text(&topology.to_string()).unwrap(), topology);
    }
}

#[test]
fn a_description_is_no_statement() {
    let text = "Switch 8 \"S\" # \"rack lid 9 4xEDR\" lid 3\n[1] \"H\"[1] # \"lid 5 4xEDR\" lid 6\n\nHca 1 \"H\"";
    let topology = Topology::from_text(text).unwrap();
    let switch = &topology.nodes[0];
    assert_eq!((switch.description.as_deref(), switch.lid), (Some("rack lid 9 4xEDR"), Some(3)));
    assert_eq!((switch.links[0].lid, switch.links[0].width), (None, None));
    let open = Topology::from_text("Switch 8 \"S\" # \"rack lid 3").unwrap();
    assert_eq!((&open.nodes[0].description, open.nodes[0].lid), (&None, Some(3)));
    assert_eq!(Topology::from_text(&topology.to_string()), Ok(topology));
}

#[test]
fn the_form_of_toml() {
    let topology = Topology::from_toml(TOML).unwrap();
    let host = topology.node("H1").unwrap();
    assert_eq!((host.guid, host.kind), (Some(0x30_0000), NodeType::Ca));
    assert_eq!((host.links[0].peer.as_str(), host.links[0].speed), ("S1", Some(Speed::Edr)));
}

#[test]
fn a_link_may_lead_to_a_node_of_another_agent() {
    let text = Topology::from_text("Switch 8 \"S1\"\n[3] \"@10.0.0.2/S1\"[4]\n").unwrap();
    let toml = "[[node]]\nname = \"S1\"\nkind = \"switch\"\nports = 8\nlinks = { 3 = \"@10.0.0.2/S1[4]\" }";
    assert_eq!(Topology::from_toml(toml), Ok(text.clone()));
    let link = &text.nodes[0].links[0];
    assert_eq!((link.outside().unwrap().node, link.peer_port), ("S1", 4));
    assert_eq!(Topology::from_text(&text.to_string()), Ok(text));
    let long = toml.replace("10.0.0.2/S1[4]", "[fd00::2]:5000/S1[4] 4xEDR");
    assert_eq!(Topology::from_toml(&long).unwrap().nodes[0].links[0].outside().unwrap().udp_port, Some(5000));
    let error = |text: &str| Topology::from_text(text).unwrap_err().to_string();
    assert!(error("Switch 8 \"S1\"\n[3] \"@S2\"[4]\n").starts_with("line 2, column 1: \"@S2\" names no node"));
    assert!(error("Switch 8 \"@S1\"\n").contains("begins with @"));
}

#[test]
fn errors_name_the_place_and_what_to_do() {
    let text = |text: &str| Topology::from_text(text).unwrap_err().to_string();
    assert_eq!(
        text("Switch 8 \"S\"\n[1] \"X\"[1]\n"),
        "line 2, column 1: there is no node \"X\"; add it or remove the link"
    );
    assert_eq!(text("Switch 8 S"), "line 1, column 10: '\"' is missing; write the name of the node in quotes");
    assert_eq!(text("Switch 255 \"S\""), "line 1, column 1: a node cannot have 255 ports; it has 1 to 254");
    assert_eq!(
        text("[1] \"S\"[1]"),
        "line 1, column 1: a port without a node; put it directly under the line of its node"
    );
    assert_eq!(text("vendid=x"), "line 1, column 8: \"x\" is not a number; write one like 0x2c9");
    assert_eq!(
        text("Hca 1 \"H\"\n[1] \"S\"[1] w=3\n\nSwitch 8 \"S\""),
        "line 2, column 12: the width must be one of w=1 (1X), 2 (4X), 4 (8X), 8 (12X), 16 (2X)"
    );
    let taken = "Hca 1 \"H\"\n[1] \"S\"[1]\n\nHca 1 \"I\"\n[1] \"S\"[1]\n\nSwitch 8 \"S\"";
    assert_eq!(text(taken), "line 5, column 1: port 1 of \"S\" has another link; remove one of them");
    assert_eq!(text("Hca 1 \"H\"\n[2] \"H\"[1]"), "line 2, column 1: \"H\" has no port 2; its ports are 1 to 1");
    assert_eq!(
        text("Hca 1 \"H\"\n[1] \"H\"[1]"),
        "line 2, column 1: the link leads to its own port; name another port"
    );
    assert_eq!(
        text("Hca 1 \"H\"\n\nHca 1 \"H\""),
        "line 3, column 1: node \"H\" exists twice; give each node its own name"
    );
    let toml = |text: &str| Topology::from_toml(text).unwrap_err().to_string();
    assert_eq!(
        toml("[[node]]\nname = \"S\"\nkind = \"switch\"\nports = 8\nlinks = { 1 = \"X\" }"),
        "line 5, column 15: 1 = \"X\" is not a link; write 1 = \"H1[1] 4xEDR\""
    );
    assert!(toml("[[node]]\nname = 3").starts_with("line 2, column 8: "));
}

proptest! {
    #[test]
    fn any_text_is_a_topology_that_comes_back_or_an_error(
        lines in proptest::collection::vec(
            "(Switch|Hca|Ca|Rt|caguid=|sysimgguid=0x)? ?[0-9a\\[\\]]{0,3} ?(\\[[1-3]\\])?(\\([0-9a-f]{1,3}\\))?[ \t]?\"?[ABé]\"?(\\[[1-3]\\])? ?(w=2|s=4|e=1|# lid 3 4xQDR)?",
            0..12,
        ),
    ) {
        let text = lines.join("\n");
        if let Ok(topology) = Topology::from_text(&text) {
            prop_assert_eq!(Topology::from_text(&topology.to_string()), Ok(topology));
        }
        let _ = Topology::from_toml(&text);
    }
}
