//! Rules in a TOML file: `rules = ["loss 5%", …]`, or one `[[rule]]` for each. In a `[[rule]]`,
//! `fault` is the beginning of the rule's text, and the other members are its keys.

use toml::{Table, Value};

/// Converts the rules of a file to text.
///
/// # Errors
/// The text is not TOML, or has other content.
pub fn rules(text: &str) -> Result<String, String> {
    let table: Table = text.parse().map_err(|error| format!("not valid TOML: {error}"))?;
    let mut rules = Vec::new();
    for (key, value) in &table {
        match (key.as_str(), value) {
            ("rules", Value::Array(texts)) => {
                for text in texts {
                    let text = text.as_str().ok_or_else(|| "rules: an array of texts is expected".to_owned())?;
                    rules.push(text.to_owned());
                }
            }
            ("rule", Value::Array(tables)) => {
                for table in tables {
                    let table = table.as_table().ok_or_else(|| "rule: tables are expected, as [[rule]]".to_owned())?;
                    rules.push(rule(table)?);
                }
            }
            _ => return Err(format!("{key:?} is not known; a file has rules = [\"…\"] or [[rule]]")),
        }
    }
    Ok(rules.join("\n"))
}

fn rule(table: &Table) -> Result<String, String> {
    let fault = table.get("fault").and_then(Value::as_str);
    let mut text = fault.ok_or_else(|| "a [[rule]] has no fault, as fault = \"loss\"".to_owned())?.to_owned();
    for (key, value) in table.iter().filter(|(key, _)| *key != "fault") {
        let value = match value {
            Value::String(text) => text.clone(),
            Value::Integer(number) => number.to_string(),
            Value::Float(number) => number.to_string(),
            _ => return Err(format!("{key}: a text or a number is expected")),
        };
        text += &format!(" {key} {value}");
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_of_writing_give_rules() {
        let text = "rules = [\"rnr 1%\"]\n[[rule]]\nfault = \"loss\"\nrate = \"5%\"\nqp = 0x11\n[[rule]]\nfault = \"delay 2ms\"\nrate = 0.5\n";
        let parsed = abi::fault::parse_all(&rules(text).expect("rules")).expect("sound ones");
        let mut shown: Vec<String> = parsed.iter().map(ToString::to_string).collect();
        shown.sort();
        assert_eq!(shown, ["delay 2ms rate 50%", "loss 5% qp 0x11", "rnr 1%"]);
    }

    #[test]
    fn errors_in_a_rules_file_name_the_key() {
        for (text, expected) in [
            ("rules", "not valid TOML"),
            ("rules = [1]", "an array of texts"),
            ("loss = 5", "\"loss\" is not known"),
            ("[[rule]]\nrate = 1", "has no fault"),
            ("[[rule]]\nfault = \"loss\"\nqp = [1]", "qp: a text or a number"),
        ] {
            let why = rules(text).expect_err(text);
            assert!(why.contains(expected), "{why}");
        }
    }
}
