//! The way of a directed-route datagram through one node, on its way out and back. Not what its
//! end does with it ([`crate::sma`]). IBA 14.2.2. The function is [`step`].

use wire::smp::{MAX_HOPS, PERMISSIVE_LID, Smp};

/// What a node does with a directed-route datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The datagram has arrived: the agent of this node handles it, or the manager gets its answer.
    Here,
    /// It leaves through this port.
    Port(u8),
    /// Its directed part is over, and it continues by LID.
    Lid(u16),
    /// Its pointers contradict each other, or the port does not exist.
    Drop,
}

/// Moves a datagram by one hop, and changes its pointers and its return path. `ingress` is the port
/// at which it came in; without one, the node itself sends it. Only switches have `forwards`.
pub fn step(smp: &mut Smp, forwards: bool, ports: u8, ingress: Option<u8>) -> Step {
    if smp.hop_count > MAX_HOPS {
        return Step::Drop;
    }
    let next = if smp.returning { back(smp, forwards, ingress) } else { out(smp, forwards, ingress) };
    match next {
        Step::Port(port) if port == 0 || port > ports => Step::Drop,
        next => next,
    }
}

fn out(smp: &mut Smp, forwards: bool, ingress: Option<u8>) -> Step {
    let Smp { hop_pointer: pointer, hop_count: count, .. } = *smp;
    match ingress {
        // The node that sends, or the one at which the LID-routed part ends.
        _ if pointer == 0 && count != 0 && (ingress.is_none() || forwards && smp.dr_slid != PERMISSIVE_LID) => {
            smp.hop_pointer = 1;
            Step::Port(smp.initial_path[1])
        }
        Some(ingress) if pointer != 0 && pointer < count && forwards => {
            smp.return_path[usize::from(pointer)] = ingress;
            smp.hop_pointer = pointer + 1;
            Step::Port(smp.initial_path[usize::from(pointer) + 1])
        }
        Some(ingress) if pointer == count && count != 0 => {
            smp.return_path[usize::from(pointer)] = ingress;
            smp.hop_pointer = pointer + 1;
            by_lid(smp.dr_dlid, forwards)
        }
        // No hops: the node that sends, or the one at which the LID-routed part ends. The pointer
        // moves behind the end, so that the datagram is not sent on once more where it arrives.
        _ if pointer == count && count == 0 => {
            let next = by_lid(smp.dr_dlid, ingress.is_none() || forwards);
            smp.hop_pointer = u8::from(next != Step::Here);
            next
        }
        Some(_) if pointer == count + 1 => Step::Here,
        _ => Step::Drop,
    }
}

fn back(smp: &mut Smp, forwards: bool, ingress: Option<u8>) -> Step {
    let Smp { hop_pointer: pointer, hop_count: count, .. } = *smp;
    let leaves = |smp: &mut Smp| {
        smp.hop_pointer = pointer - 1;
        Step::Port(smp.return_path[usize::from(pointer) - 1])
    };
    match ingress {
        // The node that answers, or the one at which the LID-routed part ends.
        None if count != 0 && pointer == count + 1 => leaves(smp),
        Some(_) if count != 0 && pointer == count + 1 && forwards => leaves(smp),
        Some(_) if (2..=count).contains(&pointer) && forwards => leaves(smp),
        Some(_) if pointer == 1 => {
            smp.hop_pointer = 0;
            by_lid(smp.dr_slid, forwards)
        }
        None if pointer == 0 && count == 0 => by_lid(smp.dr_slid, true),
        Some(_) if pointer == 0 => Step::Here,
        _ => Step::Drop,
    }
}

/// The end of a directed part.
fn by_lid(lid: u16, forwards: bool) -> Step {
    match lid {
        PERMISSIVE_LID => Step::Here,
        lid if forwards => Step::Lid(lid),
        _ => Step::Drop,
    }
}

/// Turns a request that this node has handled into the answer on its way back.
pub fn turn(smp: &mut Smp) {
    smp.returning = true;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn smp(path: &[u8]) -> Smp {
        let mut smp = Smp { dr_slid: PERMISSIVE_LID, dr_dlid: PERMISSIVE_LID, ..Smp::default() };
        smp.hop_count = u8::try_from(path.len()).unwrap();
        smp.initial_path[1..=path.len()].copy_from_slice(path);
        smp
    }

    /// From an adapter's port 1 over two switches (in at 4, out at 5, in at 6, out at 7) to an
    /// adapter's port 2, and back.
    #[test]
    fn over_two_switches_and_back() {
        let mut smp = smp(&[1, 5, 7]);
        assert_eq!(step(&mut smp, false, 2, None), Step::Port(1));
        assert_eq!(step(&mut smp, true, 36, Some(4)), Step::Port(5));
        assert_eq!(step(&mut smp, true, 36, Some(6)), Step::Port(7));
        assert_eq!((smp.hop_pointer, step(&mut smp, false, 2, Some(2))), (3, Step::Here));
        assert_eq!((smp.hop_pointer, &smp.return_path[..4]), (4, &[0, 4, 6, 2][..]));
        turn(&mut smp);
        assert_eq!(step(&mut smp, false, 2, None), Step::Port(2));
        assert_eq!(step(&mut smp, true, 36, Some(7)), Step::Port(6));
        assert_eq!(step(&mut smp, true, 36, Some(5)), Step::Port(4));
        assert_eq!(step(&mut smp, false, 2, Some(1)), Step::Here);
        assert_eq!(smp.hop_pointer, 0);
    }

    #[test]
    fn no_hops_are_the_own_node() {
        let mut own = smp(&[]);
        assert_eq!(step(&mut own, false, 1, None), Step::Here);
        turn(&mut own);
        assert_eq!(step(&mut own, false, 1, None), Step::Here);
    }

    #[test]
    fn a_route_may_begin_and_end_by_lid() {
        let mut combined = Smp { dr_slid: 3, dr_dlid: 9, ..smp(&[1, 5]) };
        // It comes by LID to the switch at which the directed part begins.
        assert_eq!(step(&mut combined, true, 36, Some(2)), Step::Port(1));
        assert_eq!(step(&mut combined, true, 36, Some(4)), Step::Port(5));
        assert_eq!(step(&mut combined, true, 36, Some(6)), Step::Lid(9));
        assert_eq!(step(&mut combined, false, 1, Some(1)), Step::Here, "its pointer is behind the end");
        turn(&mut combined);
        // The answer comes by LID to the switch at which the directed part ended.
        assert_eq!(step(&mut combined, true, 36, Some(7)), Step::Port(6));
        assert_eq!(step(&mut combined, true, 36, Some(5)), Step::Port(4));
        assert_eq!(step(&mut combined, true, 36, Some(1)), Step::Lid(3));
    }

    /// The loop that a datagram without hops could make: it goes on by LID once, and ends there.
    #[test]
    fn a_route_without_hops_goes_on_by_lid_once() {
        let mut request = Smp { dr_dlid: 9, ..smp(&[]) };
        assert_eq!(step(&mut request, false, 1, None), Step::Lid(9));
        assert_eq!(step(&mut request, false, 1, Some(1)), Step::Here);
        let mut answer = Smp { dr_slid: 3, ..smp(&[]) };
        turn(&mut answer);
        assert_eq!(step(&mut answer, false, 1, None), Step::Lid(3));
        assert_eq!(step(&mut answer, false, 1, Some(1)), Step::Here);
    }

    #[test]
    fn what_contradicts_itself_is_dropped() {
        assert_eq!(step(&mut smp(&[9]), true, 8, None), Step::Drop, "no such port");
        assert_eq!(step(&mut smp(&[0]), true, 8, None), Step::Drop);
        assert_eq!(step(&mut smp(&[1]), true, 8, Some(1)), Step::Drop, "no LID-routed part came before");
        assert_eq!(step(&mut Smp { hop_count: 64, ..smp(&[1]) }, true, 8, None), Step::Drop);
        assert_eq!(step(&mut Smp { hop_pointer: 3, ..smp(&[1]) }, true, 8, Some(1)), Step::Drop);
        assert_eq!(step(&mut Smp { hop_pointer: 1, ..smp(&[1, 1]) }, false, 8, Some(1)), Step::Drop, "an adapter");
        assert_eq!(step(&mut Smp { dr_dlid: 5, hop_pointer: 1, ..smp(&[1]) }, false, 8, Some(1)), Step::Drop);
    }

    #[test]
    fn no_pointers_panic() {
        for pointer in 0..=255 {
            for count in 0..=255 {
                for flags in 0..8 {
                    let mut smp = Smp { hop_pointer: pointer, hop_count: count, returning: flags & 1 != 0, ..smp(&[]) };
                    step(&mut smp, flags & 2 != 0, 255, (flags & 4 != 0).then_some(1));
                }
            }
        }
    }
}
