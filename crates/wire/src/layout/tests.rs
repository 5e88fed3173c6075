//! Tests of the tables, and what the tests of each layout share: [`round_trip`] and [`leaves`].

#![allow(unreachable_pub, dead_code, reason = "the macro makes public structs, and not all of them are used")]

use super::*;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::fmt::Debug;

/// Parses arbitrary bytes, and checks that nothing but reserved bits is lost; that no two fields
/// overlap; and that each stays inside.
pub(crate) fn round_trip<T: Layout + PartialEq + Debug>() {
    let mut owner: Vec<Option<String>> = vec![None; 8 * T::LEN];
    for (name, at, bits) in leaves::<T>() {
        assert!(at + bits <= 8 * T::LEN, "{name} ends outside");
        for owner in &mut owner[at..at + bits] {
            assert_eq!(owner.replace(name.clone()), None, "{name} overlaps");
        }
    }
    let mut runner = TestRunner::new(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() });
    let bytes = proptest::collection::vec(any::<u8>(), T::LEN);
    let outcome = runner.run(&bytes, |bytes| {
        let parsed = T::read(&bytes).expect("enough bytes");
        let mut again = vec![0xff; T::LEN];
        prop_assert!(parsed.write(&mut again));
        for (bit, owner) in owner.iter().enumerate() {
            let expected = owner.is_some() && bytes[bit / 8] << (bit % 8) & 0x80 != 0;
            prop_assert_eq!(again[bit / 8] << (bit % 8) & 0x80 != 0, expected, "bit {} of {:?}", bit, owner);
        }
        prop_assert_eq!(T::read(&again), Some(parsed));
        Ok(())
    });
    outcome.expect("the layout is a bijection of its fields");
    assert_eq!(T::read(&vec![0; T::LEN - 1]), None);
}

/// The fields that are no layouts themselves: name, first bit, bits.
pub(crate) fn leaves<T: Bits>() -> Vec<(String, usize, usize)> {
    let mut found = Vec::new();
    flatten("", T::FIELDS, 0, &mut found);
    found
}

fn flatten(prefix: &str, fields: &[Field], at: usize, found: &mut Vec<(String, usize, usize)>) {
    for field in fields {
        let name = format!("{prefix}{}", field.name);
        if field.fields.is_empty() {
            found.push((name, at + field.at, field.bits));
        } else {
            for nth in 0..field.elements {
                flatten(&format!("{name}."), field.fields, at + field.at + nth * (field.bits / field.elements), found);
            }
        }
    }
}

/// Compares a layout with rows of another source: a name there, the first bit, the bits. Each row
/// must be a field here.
pub(crate) fn agrees<T: Bits>(rows: &[(&str, usize, usize)]) {
    let own = leaves::<T>();
    for row in rows {
        assert!(own.iter().any(|(_, at, bits)| (*at, *bits) == (row.1, row.2)), "no field is {row:?}");
    }
}

/// The components of a record: the name of the field, and its bit in the mask.
pub(crate) fn components<T: Bits>() -> Vec<(String, u8)> {
    let mut found = Vec::new();
    number("", T::FIELDS, 0, &mut found);
    found.sort_by_key(|(_, component)| *component);
    found
}

fn number(prefix: &str, fields: &[Field], first: u8, found: &mut Vec<(String, u8)>) {
    for field in fields {
        let name = format!("{prefix}{}", field.name);
        match field.matching {
            None => number(&format!("{name}."), field.fields, first, found),
            Some(Matching::Component(base)) if !field.fields.is_empty() => {
                number(&format!("{name}."), field.fields, first + base, found);
            }
            Some(Matching::Components(base)) => {
                for nth in 0..u8::try_from(field.elements).expect("few elements") {
                    found.push((format!("{name}[{nth}]"), first + base + nth));
                }
            }
            Some(
                Matching::Component(own)
                | Matching::Selector(own)
                | Matching::Selected(own)
                | Matching::SelectedRate(own),
            ) => found.push((name, first + own)),
        }
    }
}

layout! {
    /// A layout with a field of each kind.
    pub struct Sample[16] = 0x1234 {
        /// A flag.
        0, 1 => flag: bool, Component FLAG 0;
        /// A number that crosses a byte.
        5, 11 => crossing: u16, Component 1;
        /// Elements.
        16, 16 => nibbles: [u8; 4], Components 2;
        /// A selector.
        32, 2 => selector: u8, Selector 6;
        /// What it selects.
        34, 6 => selected: u8, Selected 7;
        /// A selector.
        40, 2 => rate_selector: u8, Selector 8;
        /// What it selects.
        42, 6 => rate: u8, SelectedRate 9;
        /// An inner layout.
        48, 16 => inner: Inner, Component 10;
        /// A wide number.
        64, 64 => wide: u64;
    }
}

layout! {
    /// A layout inside another.
    pub struct Inner[2] {
        /// A field.
        0, 8 => first: u8, Component 0;
        /// Another field.
        8, 8 => second: u8, Component 1;
    }
}

#[test]
fn literal_bytes_both_ways() {
    let bytes = [0x85, 0x23, 0x12, 0x34, 0xc1, 0x42, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8];
    let sample = Sample {
        flag: true,
        crossing: 0x523,
        nibbles: [1, 2, 3, 4],
        selector: 3,
        selected: 1,
        rate_selector: 1,
        rate: 2,
        inner: Inner { first: 7, second: 8 },
        wide: 0x0102_0304_0506_0708,
    };
    assert_eq!(Sample::parse(&bytes), sample);
    let mut emitted = [0xff; 17];
    sample.emit(&mut emitted);
    assert_eq!(emitted[..16], bytes);
    assert_eq!(emitted[16], 0xff);
    assert_eq!((Sample::LEN, Sample::ATTRIBUTE, Sample::FLAG), (16, 0x1234, 1));
    round_trip::<Sample>();
}

#[test]
fn values_that_are_too_large_lose_their_upper_bits() {
    let mut bytes = [0; 16];
    Sample { crossing: 0xffff, ..Sample::default() }.emit(&mut bytes);
    assert_eq!(bytes[..3], [0x07, 0xff, 0]);
}

#[test]
fn a_record_matches_by_the_components_of_the_mask_alone() {
    let record = Sample { nibbles: [1, 2, 3, 4], inner: Inner { first: 7, second: 8 }, ..Sample::default() };
    let template = Sample { flag: true, nibbles: [1, 9, 3, 4], inner: Inner { first: 6, second: 8 }, ..record };
    for (component, expected) in [(0, false), (1, true), (2, true), (3, false), (10, false), (11, true), (63, true)] {
        assert_eq!(matches(&record, &template, 1 << component), expected, "component {component}");
    }
    let second = Sample { inner: Inner { first: 7, second: 9 }, ..record };
    assert!(matches(&record, &second, 1 << 10) && !matches(&record, &second, 1 << 11));
    assert!(matches(&record, &template, 0));
    assert!(!matches(&record, &template, u64::MAX));
}

#[test]
fn selectors_compare_and_rates_are_not_ordered_by_their_codes() {
    let ten = Sample { selected: 4, rate: 3, ..Sample::default() };
    let ask = |selector, selected| Sample { selector, selected, ..Sample::default() };
    let outcome = |mask| move |template: Sample| matches(&ten, &template, mask);
    let both = [ask(0, 3), ask(0, 4), ask(1, 5), ask(1, 4), ask(2, 4), ask(2, 5), ask(3, 9)];
    assert_eq!(both.map(outcome(0xc0)), [true, false, true, false, true, false, true]);
    assert_eq!(both.map(outcome(0x80)), [false, true, false, true, true, false, false], "without a selector: equal");
    assert_eq!(both.map(outcome(0x40)), [true; 7], "a selector alone says nothing");
    // 5 Gb/s has code 5, which is above 10 Gb/s, code 3.
    let rate = |rate_selector, rate| matches(&ten, &Sample { rate_selector, rate, ..Sample::default() }, 0x300);
    assert!(rate(0, 5) && !rate(1, 5) && rate(1, 6) && rate(2, 3));
}
