//! The form of `--json`: one object with the version of its schema. This module does not choose the
//! members; docs/json.md describes them. The principal function is [`document`].

use serde_json::{Map, Value};

/// The version of the schema. It is increased when a member is removed or changes its meaning. New
/// members may be added at any time.
const SCHEMA: u32 = 2;

/// The largest integer that every JSON parser represents exactly.
const EXACT: u64 = 1 << 53;

/// A document with `value` as its member `name`.
pub(crate) fn document(name: &str, value: Value) -> serde_json::Result<String> {
    object(Value::Object(Map::from_iter([(name.to_owned(), value)])))
}

/// A document with the members of `value`.
pub(crate) fn object(value: Value) -> serde_json::Result<String> {
    Ok(serde_json::to_string_pretty(&versioned(value))? + "\n")
}

/// A document with the members of `value` on one line, without the line end.
pub(crate) fn line(value: Value) -> String {
    versioned(value).to_string()
}

fn versioned(mut value: Value) -> Value {
    if let Value::Object(members) = &mut value {
        members.insert("schema".to_owned(), SCHEMA.into());
    }
    exact(value)
}

/// The names of the flags that are set. A flag without a name is its bit in hex.
pub(crate) fn flags(bits: u64, name: impl Fn(u64) -> Option<String>) -> Value {
    let set = (0..u64::BITS).map(|bit| 1_u64 << bit).filter(|bit| bits & bit != 0);
    set.map(|bit| Value::String(name(bit).unwrap_or_else(|| format!("{bit:#x}")))).collect()
}

/// The value with those integers as strings that a double cannot represent.
fn exact(value: Value) -> Value {
    match value {
        Value::Number(number) if number.as_u64().is_some_and(|number| number > EXACT) => {
            Value::String(number.to_string())
        }
        Value::Array(list) => list.into_iter().map(exact).collect(),
        Value::Object(members) => members.into_iter().map(|(name, value)| (name, exact(value))).collect(),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::{document, line, object};
    use serde_json::{Value, json};

    #[test]
    fn large_integers_are_strings_and_the_schema_has_a_version() {
        let text = document("rows", json!([{"start": u64::MAX, "length": 1_u64 << 53, "name": "x"}])).expect("text");
        let value: Value = serde_json::from_str(&text).expect("sound");
        let row = json!({"start": "18446744073709551615", "length": 9_007_199_254_740_992_u64, "name": "x"});
        assert_eq!(value, json!({"schema": 2, "rows": [row]}));
        assert!(object(json!({"a": 1})).expect("text").contains("\"schema\": 2"));
        assert_eq!(line(json!({"time": u64::MAX})), r#"{"schema":2,"time":"18446744073709551615"}"#);
    }
}
