//! Every variable is documented in one page.

#[test]
fn every_variable_that_has_a_name_here_is_in_the_reference() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("../../docs/reference/variables.md")).unwrap();
    let mut count = 0;
    for source in ["src/variables.rs", "src/role/mpi.rs"] {
        let source = std::fs::read_to_string(root.join(source)).unwrap();
        let code = source.lines().filter(|line| !line.trim_start().starts_with("//"));
        let texts = code.flat_map(|line| line.split('"').skip(1).step_by(2));
        let is_name = |text: &&str| text.len() > 3 && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        for name in texts.filter(is_name) {
            assert!(page.contains(&format!("`{name}`")), "docs/reference/variables.md does not have `{name}`");
            count += 1;
        }
    }
    assert!(count > 40, "{count}");
}
