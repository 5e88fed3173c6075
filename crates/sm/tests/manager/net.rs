//! Fabrics of the tests with managers in them. Principal type: [`Net`].

use mad::topology::Topology;
use softhca_sm::{Address, Config, Event, Manager};
use std::fmt::Write;
use std::time::Duration;
use subnet::fabric::TRAINING;
use subnet::managed::{Datagram, Managed, Output};
use subnet::{End, Time};
use wire::smp::{Capability, PERMISSIVE_LID};

pub(crate) const MS: Time = 1_000_000_000;
pub(crate) const SECOND: Time = 1000 * MS;

/// Two switches with two links between them, a third one above, four adapters; one has two ports.
pub(crate) const SMALL: &str = r#"
Switch 20 "S1"
[1] "H1"[1]
[2] "H2"[1]
[7] "S2"[8]
[6] "S2"[7]
[18] "S3"[1]

Switch 8 "S2"
[1] "H3"[1]
[2] "H4"[1]
[3] "H4"[2]
[4] "S3"[2]

Switch 4 "S3"

Hca 1 "H1"
Hca 1 "H2"
Hca 1 "H3"
Hca 2 "H4"
"#;

/// A manager and its port.
pub(crate) struct Site {
    pub(crate) end: End,
    pub(crate) manager: Manager,
    pub(crate) events: Vec<Event>,
    /// The Sets that the manager has sent.
    pub(crate) sets: usize,
    /// Until then its requests are lost, but not its answers.
    pub(crate) mute_until: Time,
    /// Until then its answers are lost, but not its requests.
    pub(crate) answers_from: Time,
    is_alive: bool,
}

/// A fabric with managers.
pub(crate) struct Net {
    pub(crate) managed: Managed,
    pub(crate) sites: Vec<Site>,
    /// What came out of attached ports and is not for a manager.
    pub(crate) outputs: Vec<Output>,
}

impl Net {
    /// Trained links, and no manager.
    pub(crate) fn new(text: &str) -> Net {
        let mut managed = Managed::new(&Topology::from_text(text).unwrap()).unwrap();
        managed.advance(2 * TRAINING);
        Net { managed, sites: Vec::new(), outputs: Vec::new() }
    }

    /// A fabric that a manager at H1 has brought up.
    pub(crate) fn up(text: &str, config: Config) -> Net {
        let mut net = Net::new(text);
        net.start("H1", config);
        net.settle();
        net
    }

    /// Starts a manager at a node's port 1, or at port 0 of a switch.
    pub(crate) fn start(&mut self, name: &str, config: Config) -> usize {
        let node = self.managed.id(name).unwrap();
        let is_switch = self.managed.node(node).unwrap().switch.is_some();
        let end = End { node, port: u8::from(!is_switch) };
        self.managed.attach(end).unwrap();
        let port = self.managed.node(node).unwrap().port(end.port).unwrap();
        let (guid, mask) = (port.guid, port.info.capability_mask | Capability::SM);
        self.managed.set_capability(end, mask).unwrap();
        let manager = Manager::new(config, guid, 1 << 20);
        self.sites.push(Site {
            end,
            manager,
            events: Vec::new(),
            sets: 0,
            mute_until: 0,
            answers_from: 0,
            is_alive: true,
        });
        self.sites.len() - 1
    }

    /// The manager ends without a word.
    pub(crate) fn kill(&mut self, site: usize) {
        let site = &mut self.sites[site];
        site.is_alive = false;
        self.managed.detach(site.end);
    }

    pub(crate) fn manager(&mut self) -> &mut Manager {
        &mut self.sites[0].manager
    }

    /// Runs for a time.
    pub(crate) fn run(&mut self, time: Time) {
        let until = self.managed.now() + time;
        loop {
            self.transmit();
            let timers = self.sites.iter().filter(|site| site.is_alive);
            let timer = timers.filter_map(|site| site.manager.next_timeout()).min().map(time_of);
            let next = self.managed.next_event().into_iter().chain(timer).min().unwrap_or(until);
            let outputs = self.managed.advance(next.clamp(self.managed.now(), until));
            outputs.into_iter().for_each(|output| self.output(output));
            let now = duration(self.managed.now());
            for site in self.sites.iter_mut().filter(|site| site.is_alive) {
                if site.manager.next_timeout().is_some_and(|next| next <= now) {
                    site.manager.handle_timeout(now);
                }
            }
            if next > until {
                self.transmit();
                return;
            }
        }
    }

    /// Runs until all managers have nothing more to do but to wait, for at most a minute.
    pub(crate) fn settle(&mut self) {
        for _ in 0..600 {
            self.run(100 * MS);
            let idle = |site: &Site| {
                !site.is_alive
                    || site.manager.is_idle()
                        && site.manager.next_timeout() > Some(duration(self.managed.now() + 100 * MS))
            };
            if self.sites.iter().all(idle) {
                return;
            }
        }
        panic!("the managers do not come to rest");
    }

    fn transmit(&mut self) {
        for site in self.sites.iter_mut().filter(|site| site.is_alive) {
            while let Some(transmit) = site.manager.poll_transmit() {
                let own = self.managed.port_info(site.end).unwrap().lid;
                let (slid, dlid, sl) = match transmit.to {
                    Address::Directed => (PERMISSIVE_LID, PERMISSIVE_LID, 0),
                    Address::Lid { lid, sl, .. } => (own, lid, sl),
                };
                let header = wire::mad::Header::of(&transmit.mad);
                site.sets += usize::from(header.method == wire::mad::METHOD_SET);
                let is_answer = header.method & wire::mad::RESPONSE != 0;
                if self.managed.now() < if is_answer { site.answers_from } else { site.mute_until } {
                    continue;
                }
                // A link that is down loses it; the manager repeats it.
                let _ = self.managed.send(site.end, &Datagram::smp(slid, dlid, sl, transmit.mad));
            }
            site.events.extend(std::iter::from_fn(|| site.manager.poll_event()));
        }
    }

    fn output(&mut self, output: Output) {
        let now = duration(self.managed.now());
        if let Output::Datagram(delivered) = &output
            && let Some(site) = self.sites.iter_mut().find(|site| site.end == delivered.end && site.is_alive)
        {
            let Datagram { slid, sl, source_qp: qp, .. } = delivered.datagram;
            let directed = wire::mad::Header::of(&delivered.datagram.mad).class == wire::mad::CLASS_SUBN_DIRECTED;
            let from = if directed { Address::Directed } else { Address::Lid { lid: slid, sl, qp } };
            site.manager.receive(from, &delivered.datagram.mad, now);
            return;
        }
        self.outputs.push(output);
    }

    pub(crate) fn end(&self, name: &str, port: u8) -> End {
        End { node: self.managed.id(name).unwrap(), port }
    }

    /// The LID of a node's first end port.
    pub(crate) fn lid(&self, name: &str) -> u16 {
        let node = self.managed.id(name).unwrap();
        let end = self.managed.ends().find(|end| end.node == node).unwrap();
        self.managed.port_info(end).unwrap().lid
    }

    /// The end ports that have a link.
    pub(crate) fn ends(&self) -> Vec<End> {
        let linked = |end: &End| end.port == 0 || self.managed.port_info(*end).unwrap().link.state > 1;
        self.managed.ends().filter(linked).collect()
    }

    /// All LIDs, by end port.
    pub(crate) fn lids(&self) -> Vec<(End, u16)> {
        self.ends().into_iter().map(|end| (end, self.managed.port_info(end).unwrap().lid)).collect()
    }

    /// Every end port reaches every LID of every other one.
    pub(crate) fn assert_connected(&self) {
        let ends = self.ends();
        for from in &ends {
            for to in ends.iter().filter(|to| *to != from) {
                let info = self.managed.port_info(*to).unwrap();
                assert_ne!(info.lid, 0);
                for lid in info.lid..info.lid + (1 << info.lmc) {
                    let end = self.follow(*from, lid);
                    assert!(end.as_ref().is_ok_and(|end| end == to), "{from:?} to {to:?} LID {lid}: {end:?}");
                }
            }
        }
    }

    /// Where packets of a port to a LID arrive. Those of a switch itself take its table first.
    fn follow(&self, from: End, lid: u16) -> Result<End, String> {
        let node = self.managed.node(from.node).unwrap();
        if node.switch.is_none() {
            return self.managed.resolve(from, lid, 0).map(|path| path.end).map_err(|why| why.to_string());
        }
        let mut at = from;
        for _ in 0..64 {
            let node = self.managed.node(at.node).unwrap();
            if node.switch.is_none() || node.ports[0].info.lid == lid {
                return Ok(if node.switch.is_none() { at } else { End { port: 0, ..at } });
            }
            let port = node.egress(lid).ok_or(format!("no route at {at:?}"))?;
            let out = End { port, ..at };
            if self.managed.port_info(out).unwrap().link.state != 4 {
                return Err(format!("{out:?} is not active"));
            }
            at = self.managed.fabric().peer(out).ok_or(format!("no cable at {out:?}"))?;
        }
        Err("a loop".into())
    }

    /// What went wrong, by the managers' events.
    pub(crate) fn problems(&self) -> Vec<String> {
        let events = self.sites.iter().flat_map(|site| &site.events);
        let problems = events.filter_map(|event| match event {
            Event::Problem(problem) => Some(problem.to_string()),
            _ => None,
        });
        problems.collect()
    }

    /// The changes that the managers have told of.
    pub(crate) fn ups(&self) -> usize {
        let events = self.sites.iter().flat_map(|site| &site.events);
        events.filter(|event| matches!(event, Event::Up(_))).count()
    }

    /// The notices with a number.
    pub(crate) fn notices(&self, number: u16) -> usize {
        let is = |event: &&Event| matches!(event, Event::Notice(notice) if notice.number == number);
        self.sites.iter().flat_map(|site| &site.events).filter(is).count()
    }
}

/// A tree of three levels: `half` adapters at each leaf, `half` leaves and `half` middle switches
/// in a pod, and `half` roots for each middle switch.
pub(crate) fn fat_tree(half: usize, pods: usize) -> String {
    let mut text = String::new();
    let ports = (2 * half).max(pods);
    for pod in 0..pods {
        for leaf in 0..half {
            writeln!(text, "Switch {ports} \"L{pod}-{leaf}\"").unwrap();
            for at in 0..half {
                let host = (pod * half + leaf) * half + at + 1;
                writeln!(text, "[{}] \"H{host}\"[1]", at + 1).unwrap();
            }
            for middle in 0..half {
                writeln!(text, "[{}] \"M{pod}-{middle}\"[{}]", half + middle + 1, leaf + 1).unwrap();
            }
            text.push('\n');
        }
        for middle in 0..half {
            writeln!(text, "Switch {ports} \"M{pod}-{middle}\"").unwrap();
            for root in 0..half {
                writeln!(text, "[{}] \"R{middle}-{root}\"[{}]", half + root + 1, pod + 1).unwrap();
            }
            text.push('\n');
        }
    }
    for root in 0..half * half {
        writeln!(text, "Switch {ports} \"R{}-{}\"\n", root / half, root % half).unwrap();
    }
    (1..=pods * half * half).for_each(|host| writeln!(text, "Hca 1 \"H{host}\"\n").unwrap());
    text
}

pub(crate) fn duration(time: Time) -> Duration {
    Duration::from_nanos(time / 1000)
}

fn time_of(duration: Duration) -> Time {
    Time::try_from(duration.as_nanos() * 1000).unwrap()
}
