//! How `--json` is printed: one object with the version of its schema. docs/json.md describes what is in it.

use serde_json::{Map, Value};

/// The version of the schema. It grows when a member goes or changes its meaning; new members may come at any time.
const SCHEMA: u32 = 1;

/// The largest integer that every reader of JSON understands exactly.
const EXACT: u64 = 1 << 53;

/// A document with `value` as its member `name`.
pub(crate) fn document(name: &str, value: Value) -> serde_json::Result<String> {
    object(Value::Object(Map::from_iter([(name.to_owned(), value)])))
}

/// A document of the members of `value`.
pub(crate) fn object(mut value: Value) -> serde_json::Result<String> {
    if let Value::Object(members) = &mut value {
        members.insert("schema".to_owned(), SCHEMA.into());
    }
    Ok(serde_json::to_string_pretty(&exact(value))? + "\n")
}

/// The same with integers that a double cannot hold as strings.
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
    use super::{document, object};
    use serde_json::{Value, json};

    #[test]
    fn large_integers_are_strings_and_the_schema_has_a_version() {
        let text = document("rows", json!([{"start": u64::MAX, "length": 1_u64 << 53, "name": "x"}])).expect("text");
        let value: Value = serde_json::from_str(&text).expect("sound");
        let row = json!({"start": "18446744073709551615", "length": 9_007_199_254_740_992_u64, "name": "x"});
        assert_eq!(value, json!({"schema": 1, "rows": [row]}));
        assert!(object(json!({"a": 1})).expect("text").contains("\"schema\": 1"));
    }
}
