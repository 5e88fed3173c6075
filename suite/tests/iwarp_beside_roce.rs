//! One agent with a RoCE device and an iWARP device, each with an interface and an address of its
//! own: librdmacm picks the device by the address, events and GIDs stay with their device, and
//! `softhca devices` shows what each device has.

use harness::namespace::Namespace;
use harness::{HANG, Room, User, cprogram};

const ROCE: &str = "10.9.0.1";
const IWARP: &str = "10.9.1.1";

/// A host with both devices. `None` without root.
fn host(user: User) -> Option<(Room, Namespace)> {
    let namespace = Namespace::new().expect("a namespace")?;
    namespace
        .script(&format!(
            "for name in near other; do ip link add $name type veth peer name far-$name; \
             ip link set far-$name up; ip link set $name up; done; \
             ip address add {ROCE}/24 dev near; ip address add {IWARP}/24 dev other"
        ))
        .expect("links");
    let room = Room::of(user).expect("a room").entered_by(&namespace.entrance());
    let file = room.folder().join("agent.toml");
    let config = "[[devices]]\nname = \"roce0\"\n[[devices.ports]]\ninterfaces = [\"near\"]\n\
                  [[devices]]\nname = \"iw0\"\ntransport = \"iwarp\"\n[[devices.ports]]\ninterfaces = [\"other\"]\n";
    std::fs::write(&file, config).expect("a configuration");
    let room = room.with_agent(&["--config", &file.display().to_string()]).expect("an agent");
    Some((room, namespace))
}

fn both(user: User) {
    let Some((room, namespace)) = host(user) else { return };
    let path = cprogram::build_with(&room, "transports", &["-lrdmacm"]).expect("it compiles").display().to_string();
    let mut program = room.start(room.run(&[&path, ROCE, IWARP])).expect("it starts");
    program.wait_for_words("ready", HANG).unwrap_or_else(|why| panic!("{why}"));
    // The address changes nothing for programs of the iWARP device: it has one GID, which stays.
    namespace.script("ip address add 10.9.1.2/24 dev other; ip link set near down").expect("done");
    let outcome = program.wait(HANG).expect("it ends");
    assert!(outcome.succeeded(), "{}", outcome.told());
    room.wait_until_all_is_forgotten(HANG).expect("nothing is left");
}

#[test]
fn a_program_uses_both_by_their_addresses() {
    both(User::Me);
}

#[test]
fn an_ordinary_user_uses_both_by_their_addresses() {
    both(User::Nobody);
}

#[test]
fn devices_shows_the_addresses_of_iwarp_beside_its_only_gid() {
    let Some((room, namespace)) = host(User::Me) else { return };
    let json = room.json(&["devices", "--json"]).expect("shown");
    let [roce, iwarp] = [0, 1].map(|device| &json["devices"][device]["ports"][0]);
    let gids = roce["gids"].as_array().expect("gids");
    let address = format!("::ffff:{ROCE}");
    assert!(gids.iter().any(|gid| gid["address"] == address.as_str() && gid["type"] == "RoCE v2"), "{roce:#}");
    assert_eq!(roce["addresses"], serde_json::json!([]), "{roce:#}");
    let [gid] = &iwarp["gids"].as_array().expect("gids")[..] else { panic!("one GID: {iwarp:#}") };
    assert_eq!((&gid["index"], &gid["type"]), (&0.into(), &"MAC".into()), "{iwarp:#}");
    assert_eq!(
        (&gid["interface"], &gid["wire"], &gid["why"]),
        (&"other".into(), &serde_json::Value::Null, &serde_json::Value::Null)
    );
    let mac = namespace.script("cat /sys/class/net/other/address").expect("read").trim().replace(':', "");
    let digits = gid["gid"].as_str().expect("a GID").replace(':', "");
    assert!(digits.starts_with(&mac) && digits[12..].chars().all(|digit| digit == '0'), "{mac} in {digits}");
    let addresses = iwarp["addresses"].as_array().expect("addresses");
    assert!(addresses.iter().any(|at| at["address"] == IWARP), "{iwarp:#}");
    assert!(addresses.iter().all(|at| at["interface"] == "other"), "{iwarp:#}");
    let text = room.finish(room.softhca(&["devices"])).expect("it ends").expect_success().output;
    let (_, iwarp) = text.split_once("hca_id: iw0").expect("a device");
    assert!(iwarp.contains(", MAC, other\n") && iwarp.contains(&format!("{IWARP}, other\n")), "{text}");
    assert!(!iwarp.contains("no wire") && !iwarp.contains("RoCE"), "{text}");
    let doctor = room.finish(room.softhca(&["doctor"])).expect("it ends").everything();
    let reached = doctor.lines().find(|line| line.contains(" can reach us at ")).expect("no address is missing");
    assert!(reached.contains(ROCE) && reached.contains(IWARP), "{doctor}");
}
