use proptest::prelude::*;

use super::*;

fn names<'a>(question: &'a Question<'_>) -> Vec<&'a str> {
    question.names.iter().map(AsRef::as_ref).collect()
}

/// Case 14: `PascalCase`, camelCase and lower case mean the same.
#[test]
fn all_casings_are_one_question() {
    for body in [
        r#"{"Pod":{"metadata":{"name":"shop","namespace":"biz","uid":"u"}},"Nodes":null,"NodeNames":["a","b"]}"#,
        r#"{"pod":{"metadata":{"name":"shop","namespace":"biz","uid":"u"}},"nodes":null,"nodeNames":["a","b"]}"#,
        r#"{"pod":{"metadata":{"name":"shop","namespace":"biz","uid":"u"}},"nodenames":["a","b"],"extra":{"x":[1]}}"#,
    ] {
        let question = Question::parse(body.as_bytes()).expect(body);
        assert_eq!(names(&question), ["a", "b"], "{body}");
        assert_eq!(question.pod.metadata.name.as_deref(), Some("shop"));
        assert!(question.by_name && question.objects.is_none());
    }
}

/// BL-140: what a v1.33 and a v1.37 kube-scheduler send: `creationTimestamp: null` up to 1.33, newer fields that we
/// do not know.
#[test]
fn old_and_new_schedulers_are_read() {
    let old = r#"{"Pod":{"metadata":{"name":"p","creationTimestamp":null},"spec":{"containers":null},"status":{}},"Nodes":null,"NodeNames":["a"]}"#;
    let new = r#"{"Pod":{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c","brandNew":{"x":1}}],"workloadRef":{"name":"w"}},"status":{"phase":"Pending"}},"Nodes":null,"NodeNames":["a"],"More":1}"#;
    for body in [old, new] {
        assert_eq!(names(&Question::parse(body.as_bytes()).expect(body)), ["a"]);
    }
}

#[test]
fn full_nodes_pass_through_byte_for_byte() {
    let node = r#"{"metadata":{"name":"n\u0031", "managedFields":[{"x": 1.50}]},  "status":{"x":"\u00e9"}}"#;
    let body = format!(
        r#"{{"Pod":{{"metadata":{{}}}},"Nodes":{{"metadata":{{}},"items":[{node}]}},"NodeNames":null}}"#
    );
    let question = Question::parse(body.as_bytes()).expect("question");
    assert_eq!(names(&question), ["n1"]);
    assert!(!question.by_name);
    let answer = FilterAnswer { objects: question.objects.clone(), ..FilterAnswer::default() };
    let json = String::from_utf8(answer.to_json().expect("json")).expect("text");
    assert_eq!(
        json,
        format!(
            r#"{{"Nodes":{{"metadata":{{}},"items":[{node}]}},"NodeNames":null,"FailedNodes":{{}},"FailedAndUnresolvableNodes":{{}},"Error":""}}"#
        )
    );
}

#[test]
fn an_answer_has_names_even_when_there_are_none() {
    let json = FilterAnswer::fault("95% of\nnothing").to_json().expect("json");
    let expected = r#"{"Nodes":null,"NodeNames":[],"FailedNodes":{},"FailedAndUnresolvableNodes":{},"Error":"95 ofnothing"}"#;
    assert_eq!(String::from_utf8(json).expect("text"), expected);
}

/// Cases 13, 31, 36: nothing that a confused caller sends panics, and each has its words.
#[test]
fn confused_callers_are_told_what_is_missing() {
    let error = |body: &str| Question::parse(body.as_bytes()).expect_err(body).to_string();
    assert!(error("").contains("EOF"));
    assert!(error("[1]").contains("cannot be read"));
    assert!(error("{").contains("EOF"));
    for body in ["null", "{}", "[]", r#"{"Pod":null,"NodeNames":["a"]}"#] {
        assert_eq!(error(body), "the request names no Pod");
    }
    for body in [r#"{"Pod":{"metadata":{}}}"#, r#"{"Pod":{"metadata":{}},"Nodes":null,"NodeNames":null}"#] {
        assert!(error(body).contains("neither Nodes nor NodeNames"), "{body}");
    }
    assert!(error(r#"{"Pod":{"metadata":{}},"Nodes":{"items":[{"metadata":{}}]}}"#).contains("no name"));
    assert!(error(r#"{"Pod":{"metadata":{}},"NodeNames":[null]}"#).contains("cannot be read"));
    assert!(error(r#"{"Pod":7,"NodeNames":[]}"#).contains("cannot be read"));
    let both = br#"{"Pod":{"metadata":{"labels":null}},"Nodes":{"items":null},"NodeNames":["a"]}"#;
    assert!(Question::parse(both).expect("both set").by_name);
    let empty = br#"{"Pod":{"metadata":{}},"Nodes":{"items":null}}"#;
    assert_eq!(Question::parse(empty).expect("nil slice").objects.map(|objects| objects.len()), Some(0));
}

proptest! {
    /// Whatever the bytes are, reading them ends with a question or an error.
    #[test]
    fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = Question::parse(&bytes);
    }

    /// A good question with one byte changed is a question or an error, never a panic.
    #[test]
    fn a_damaged_question_is_survived(at in 0usize..400, byte: u8) {
        let mut body = br#"{"Pod":{"metadata":{"name":"shop","labels":{"a":"b"}},"spec":{"containers":[{"name":"c","env":[{"name":"MODULE_VERSION","value":"1"}]}]}},"Nodes":{"metadata":{},"items":[{"metadata":{"name":"n"}}]},"NodeNames":["a","b\n"]}"#.to_vec();
        let length = body.len();
        body[at % length] = byte;
        let _ = Question::parse(&body);
    }

    #[test]
    fn every_name_survives_the_round_trip(given in prop::collection::vec("\\PC{0,20}", 0..20)) {
        let body = serde_json::json!({"Pod": {"metadata": {}}, "NodeNames": given}).to_string();
        let question = Question::parse(body.as_bytes()).expect("question");
        prop_assert_eq!(names(&question), given.iter().map(String::as_str).collect::<Vec<_>>());
    }
}
