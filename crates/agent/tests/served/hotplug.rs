//! Devices that are added to a running agent, and removed from it.

use crate::common::{Client, TestAgent};
use abi::Errno;
use abi::command::{legacy, number};
use abi::device::{self, GetContext, QueryPort, QueryPortAnswer};
use abi::event::kind;
use abi::layout::Record;
use abi::pd::{AllocPd, DeallocPd};
use abi::queue::context_page;
use agent::Config;
use agent::context::{ContextId, Peer};
use agent::dispatch::dispatch;
use agent::world::World;
use serde_json::{Value, json};

const ONE_MORE: &str = "[[devices]]\nname = \"more\"\n";

fn world() -> World {
    World::new(&Config::default(), "a test").expect("a world")
}

/// A context of a device, whose events can be read.
fn opened(world: &mut World, device: usize) -> ContextId {
    let id = world.open(device, 0, Peer { pid: 1, uid: 2, comm: "test".into() }).expect("open");
    let reply = dispatch(world, id, &legacy(number::GET_CONTEXT, &GetContext { response: 1 }, &[], 48), Vec::new());
    assert_eq!(reply.status, 0);
    id
}

fn events(world: &mut World, id: ContextId) -> Vec<u32> {
    world.flush(false);
    let page = world.contexts[&id].events.as_ref().expect("open").page();
    let count = page.read(context_page::HEAD) as usize;
    (0..count).map(|at| page.read(context_page::RECORDS + 16 * at + 8)).collect()
}

/// The state of the port, or the error number.
fn port_state(world: &mut World, id: ContextId) -> Result<u8, i32> {
    let body = QueryPort { response: 1, port_num: 1, ..QueryPort::default() };
    let request = legacy(number::QUERY_PORT, &body, &[], size_of::<QueryPortAnswer>());
    let reply = dispatch(world, id, &request, Vec::new());
    if reply.status == 0 { Ok(QueryPortAnswer::read(&reply.bytes).expect("whole").state) } else { Err(reply.status) }
}

#[test]
fn a_removed_device_is_gone_for_all_and_the_others_do_not_notice() {
    let mut world = world();
    assert_eq!(world.add_devices(ONE_MORE), Ok(vec!["more".into()]));
    let (first, second) = (opened(&mut world, 0), opened(&mut world, 1));
    let pd = dispatch(&mut world, second, &legacy(number::ALLOC_PD, &AllocPd { response: 1 }, &[], 12), Vec::new());
    let pd = u32::from_le_bytes(*pd.bytes.first_chunk().expect("a handle"));
    assert_eq!(world.devices[1].system_guid, world.devices[0].node_guid, "they are in one box");
    assert_ne!(world.devices[1].node_guid, world.devices[0].node_guid);
    world.remove_device("more").expect("it is there");
    assert_eq!(events(&mut world, second), [kind::DEVICE_FATAL]);
    assert_eq!(
        (events(&mut world, first), port_state(&mut world, first)),
        (Vec::new(), Ok(device::port_state::ACTIVE))
    );
    assert_eq!(port_state(&mut world, second), Err(Errno::EIO.to_status()), "as on a kernel");
    let give_back = legacy(number::DEALLOC_PD, &DeallocPd { pd_handle: pd }, &[], 0);
    assert_eq!(dispatch(&mut world, second, &give_back, Vec::new()).status, 0, "objects can be destroyed");
    let peer = Peer { pid: 1, uid: 2, comm: "test".into() };
    world.open(1, 0, peer).expect_err("nobody opens it");
    let said = world.remove_device("more").expect_err("it is gone");
    assert!(said.contains("no device \"more\""), "{said}");
    // The program that still has it open keeps its slot.
    assert_eq!(world.add_devices(ONE_MORE), Ok(vec!["more".into()]));
    assert_eq!(world.devices.named("more").map(|device| device.index), Some(2));
    world.close(second);
    assert_eq!(world.add_devices("[[devices]]\nname = \"third\""), Ok(vec!["third".into()]));
    assert_eq!(world.devices.named("third").map(|device| device.index), Some(1));
}

#[test]
fn devices_that_cannot_be_beside_the_others_are_refused_and_nothing_is_added() {
    let mut world = world();
    let guid = world.devices[0].node_guid;
    let lid = "[[devices.ports]]\nlink_layer = \"infiniband\"\nsubnet = { lid = 7 }\n";
    world.add_devices(&format!("[[devices]]\nname = \"ib\"\n{lid}")).expect("room");
    for (config, told) in [
        ("[[devices]]\nname = \"new\"\n[[devices]]\n".to_owned(), "a device \"softhca0\" already"),
        (format!("[[devices]]\nname = \"new\"\nnode_guid = \"{guid}\""), "\"softhca0\" has its `node_guid`"),
        (format!("[[devices]]\nname = \"new\"\n{lid}"), "port 1 of \"ib\" has this LID"),
        ("idle_exit = 1\n[[devices]]\nname = \"new\"".to_owned(), "unknown field `idle_exit`"),
        ("[[devices]]\nname = \"two words\"".to_owned(), "letters, digits"),
        (String::new(), "missing field `devices`"),
        ((0..511).map(|index| format!("[[devices]]\nname = \"d{index}\"\n")).collect(), "511 more have no room"),
    ] {
        let said = world.add_devices(&config).expect_err(told);
        assert!(said.contains(told), "{said}");
        assert_eq!(world.devices.iter().count(), 2);
    }
    let all: String = (0..510).map(|index| format!("[[devices]]\nname = \"d{index}\"\n")).collect();
    assert_eq!(world.add_devices(&all).map(|names| names.len()), Ok(510));
}

#[test]
fn a_rule_for_a_removed_device_does_not_touch_its_successor() {
    let agent = TestAgent::start();
    let ask = |question: Value| agent::admin::ask(&agent.dir, &question).expect("an answer");
    ask(json!({"request": "device", "add": ONE_MORE}));
    ask(json!({"request": "fault", "do": "add", "rules": "port-down device more"}));
    assert_eq!(ask(json!({"request": "devices"}))["devices"][1]["ports"][0]["state"], "1: DOWN");
    ask(json!({"request": "device", "remove": "more"}));
    assert_eq!(ask(json!({"request": "fault", "do": "list"}))["rules"], json!([]));
    ask(json!({"request": "device", "add": ONE_MORE}));
    assert_eq!(ask(json!({"request": "devices"}))["devices"][1]["ports"][0]["state"], "4: ACTIVE");
}

#[test]
fn nodes_and_the_mirror_follow_the_devices() {
    let agent = TestAgent::start();
    let ask = |question: Value| agent::admin::ask(&agent.dir, &question).expect("an answer");
    let files = || {
        let below = ["uverbs1", "sys/class/infiniband/more", "sys/class/infiniband_verbs/uverbs1"];
        let dev = ["sys/dev/infiniband/uverbs1", "sys/dev/infiniband/umad1"];
        below
            .iter()
            .map(|name| agent.dir.join(name).exists())
            .chain(dev.map(|name| agent.dir.join(name).is_symlink()))
            .collect::<Vec<_>>()
    };
    for _ in 0..3 {
        assert_eq!(ask(json!({"request": "device", "add": ONE_MORE})), json!({"added": ["more"]}));
        agent.eventually("status", |_| files() == [true; 5]);
        let mut client = Client::connect(&agent.dir.join("uverbs1"));
        client.open();
        client.qp();
        assert_eq!(ask(json!({"request": "device", "remove": "more"})), json!({"removed": ["more"]}));
        agent.eventually("status", |_| files() == [false; 5]);
        assert_eq!(ask(json!({"request": "devices"}))["devices"].as_array().map(Vec::len), Some(1));
        drop(client);
        agent.eventually("status", |status| status["contexts"] == 0);
    }
    // All may go; programs then find no device, and the agent still answers.
    ask(json!({"request": "device", "remove": "softhca0"}));
    assert_eq!(ask(json!({"request": "devices"}))["devices"], json!([]));
    assert_eq!(ask(json!({"request": "device"}))["error"].as_str().map(|said| said.contains("either")), Some(true));
}
