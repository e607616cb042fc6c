//! Programs that would make a shadow-stack entry without being its owner, and what the compiler says to each.

#[test]
fn safe_code_can_not_ask_for_a_shadow_stack_entry() {
    trybuild::TestCases::new().compile_fail("tests/format_refused/*.rs");
}
