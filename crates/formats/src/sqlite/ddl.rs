//! Definitions of tables: the names of their columns, and which of them is the rowid.

/// The parts of a definition that are needed to read rows.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ddl {
    /// The names of the columns, in the order of a row's values.
    pub columns: Vec<String>,
    /// The column that is an alias of the rowid: INTEGER PRIMARY KEY.
    pub rowid: Option<usize>,
    /// The columns that are computed when they are read, and have no value in a row.
    pub computed: Vec<usize>,
    /// Whether its rows lie in an index instead of a table.
    pub without_rowid: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    /// A bare word: a keyword, a name or a number.
    Word(String),
    /// A name or text in quotes.
    Quoted(String),
    Sign(char),
}

impl Token {
    fn is(&self, keyword: &str) -> bool {
        matches!(self, Token::Word(word) if word.eq_ignore_ascii_case(keyword))
    }

    fn name(&self) -> Option<&str> {
        match self {
            Token::Word(name) | Token::Quoted(name) => Some(name),
            Token::Sign(_) => None,
        }
    }
}

fn tokens(sql: &str) -> Vec<Token> {
    let mut out = Vec::new();
    let mut rest = sql.char_indices().peekable();
    while let Some((at, c)) = rest.next() {
        match c {
            c if c.is_whitespace() => {}
            '-' if sql[at..].starts_with("--") => {
                while rest.next().is_some_and(|(_, c)| c != '\n') {}
            }
            '/' if sql[at..].starts_with("/*") => {
                let end = sql[at + 2..].find("*/").map_or(sql.len(), |n| at + 2 + n + 2);
                while rest.next_if(|(i, _)| *i < end).is_some() {}
            }
            '"' | '`' | '\'' | '[' => {
                let close = if c == '[' { ']' } else { c };
                let mut text = String::new();
                while let Some((_, c)) = rest.next() {
                    if c != close {
                        text.push(c);
                    } else if close != ']' && rest.next_if(|(_, c)| *c == close).is_some() {
                        text.push(close);
                    } else {
                        break;
                    }
                }
                out.push(Token::Quoted(text));
            }
            c if c.is_alphanumeric() || c == '_' || c == '$' => {
                let mut word = String::from(c);
                let part = |c: char| c.is_alphanumeric() || c == '_' || c == '$' || c == '.';
                while let Some((_, c)) = rest.next_if(|(_, c)| part(*c)) {
                    word.push(c);
                }
                out.push(Token::Word(word));
            }
            c => out.push(Token::Sign(c)),
        }
    }
    out
}

/// Parses `CREATE TABLE …`; `None` if it has no columns.
pub(super) fn parse(sql: &str) -> Option<Ddl> {
    let tokens = tokens(sql);
    let open = tokens.iter().position(|t| *t == Token::Sign('('))?;
    let mut items: Vec<&[Token]> = Vec::new();
    let (mut depth, mut from, mut end) = (0, open + 1, None);
    for (i, token) in tokens.iter().enumerate().skip(open) {
        match token {
            Token::Sign('(') => depth += 1,
            Token::Sign(')') => {
                depth -= 1;
                if depth == 0 {
                    items.push(&tokens[from..i]);
                    end = Some(i);
                    break;
                }
            }
            Token::Sign(',') if depth == 1 => {
                items.push(&tokens[from..i]);
                from = i + 1;
            }
            _ => {}
        }
    }
    let after = &tokens[end? + 1..];
    let mut columns: Vec<String> = Vec::new();
    let mut integers = Vec::new();
    let mut computed = Vec::new();
    let mut key = None;
    for item in items {
        let first = item.first()?;
        let constraint = ["constraint", "primary", "unique", "check", "foreign"];
        if constraint.iter().any(|word| first.is(word)) {
            if let Some(columns) = key_of(item) {
                key = Some(columns);
            }
            continue;
        }
        let name = first.name()?;
        // A type ends at the first word that begins a constraint.
        let limits = ["constraint", "primary", "not", "null", "unique", "check", "default"];
        let more = ["collate", "references", "generated", "as"];
        let ends = |t: &&Token| limits.iter().chain(&more).any(|word| t.is(word));
        let kind: Vec<&Token> = item[1..].iter().take_while(|t| !ends(t)).collect();
        integers.push(kind.len() == 1 && kind[0].is("integer"));
        let is_key = |pair: &[Token]| pair[0].is("primary") && pair[1].is("key");
        let descending = item.windows(3).any(|three| is_key(three) && three[2].is("desc"));
        if item.windows(2).any(is_key) && !descending {
            key = Some(vec![name.to_owned()]);
        }
        if is_computed(item) {
            computed.push(columns.len());
        }
        columns.push(name.to_owned());
    }
    if columns.is_empty() {
        return None;
    }
    let rowid = match key.as_deref() {
        Some([only]) => {
            columns.iter().position(|name| name.eq_ignore_ascii_case(only)).filter(|&i| integers[i])
        }
        _ => None,
    };
    let without_rowid = after.windows(2).any(|two| two[0].is("without") && two[1].is("rowid"));
    Some(Ddl { columns, rowid: rowid.filter(|_| !without_rowid), computed, without_rowid })
}

/// Whether a column is generated and not stored: `[GENERATED ALWAYS] AS (expression) [VIRTUAL]`.
fn is_computed(item: &[Token]) -> bool {
    let mut depth = 0;
    let mut has_expression = false;
    for (at, token) in item.iter().enumerate().skip(1) {
        match token {
            Token::Sign('(') => depth += 1,
            Token::Sign(')') => depth -= 1,
            _ if depth > 0 => {}
            token if token.is("as") => {
                has_expression |= item.get(at + 1) == Some(&Token::Sign('('));
            }
            token if token.is("stored") && has_expression => return false,
            _ => {}
        }
    }
    has_expression
}

/// The columns of a table constraint `PRIMARY KEY (a, b)`.
fn key_of(item: &[Token]) -> Option<Vec<String>> {
    let at = item.windows(2).position(|two| two[0].is("primary") && two[1].is("key"))?;
    let names = item[at + 2..].iter().take_while(|t| **t != Token::Sign(')'));
    Some(names.filter_map(|t| t.name().map(str::to_owned)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(sql: &str) -> String {
        match parse(sql) {
            None => "nothing".into(),
            Some(ddl) => {
                let rowid = ddl.rowid.map_or("-", |i| &ddl.columns[i]);
                let without = if ddl.without_rowid { ", without rowid" } else { "" };
                format!("{} / {rowid}{without}", ddl.columns.join(" "))
            }
        }
    }

    #[test]
    fn columns_stand_between_comments_and_constraints() {
        let profiler = "CREATE TABLE StringIds (
            -- Consolidation of repetitive string values.

            id                          INTEGER   NOT NULL   PRIMARY KEY,                            -- ID reference value.
            value                       TEXT      NOT NULL                                           -- String value, with (brackets), and a comma
        )";
        assert_eq!(parsed(profiler), "id value / id");
        assert_eq!(
            parsed("CREATE TABLE c (id INTEGER NOT NULL, d INTEGER, PRIMARY KEY (id, d))"),
            "id d / -"
        );
        assert_eq!(parsed("create table c(a int, b integer, primary key(b))"), "a b / b");
        assert_eq!(parsed("CREATE TABLE c (a INTEGER PRIMARY KEY DESC)"), "a / -");
        assert_eq!(parsed("CREATE TABLE c (a INT PRIMARY KEY, b)"), "a b / -");
        assert_eq!(
            parsed(
                "CREATE TABLE c (number INTEGER PRIMARY KEY, name TEXT NOT NULL REFERENCES x(y))"
            ),
            "number name / number"
        );
        assert_eq!(
            parsed("CREATE TABLE \"odd one\" (\"end\" INT, [a b] DECIMAL(10, 2), `c``d`, 'e')"),
            "end a b c`d e / -"
        );
        assert_eq!(
            parsed("CREATE TABLE w (a INTEGER PRIMARY KEY, b) WITHOUT ROWID"),
            "a b / -, without rowid"
        );
        assert_eq!(parsed("CREATE TABLE t /* ( */ (a /* , x */ , b)"), "a b / -");
    }

    #[test]
    fn a_generated_column_is_computed_unless_it_is_stored() {
        let computed = |sql: &str| parse(sql).unwrap().computed;
        assert_eq!(
            computed("CREATE TABLE t (a, b AS (a + 1), c INT GENERATED ALWAYS AS (a) VIRTUAL)"),
            [1, 2]
        );
        assert_eq!(
            computed("CREATE TABLE t (a, b INT AS (a) STORED, c DEFAULT (cast(1 AS INT)))"),
            [0usize; 0]
        );
        assert_eq!(computed("CREATE TABLE t (a, stored INT AS (a), c \"as\" (5))"), [1]);
    }

    #[test]
    fn what_is_no_definition_is_nothing() {
        for sql in
            ["", "(", "CREATE TABLE x", "CREATE TABLE x (", "CREATE TABLE x ()", "x ((((", "'"]
        {
            assert_eq!(parsed(sql), "nothing", "{sql:?}");
        }
    }
}
