/* Template interpreter: text to tokens. White space and newlines around tags are treated as Jinja does with trim_blocks
 * and lstrip_blocks on: "-" takes all white space away on its side, "+" keeps it; otherwise the newline after a block
 * or comment goes, and so do the blanks before it if it is the first on its line. */
#include <stdio.h>
#include <string.h>

#include <utf8proc.h>

#include "base/utf8.h"
#include "text/jinja_tree.h"

struct lexer {
    struct st_j *j;
    const char *text;
    size_t size, at;
    int line;
    bool line_start; /* what was taken last ended with a newline */
    struct st_jtoken *tokens;
    size_t count, room;
};

static uint32_t peek_cp(const struct lexer *x, size_t at, size_t *length)
{
    uint32_t cp = 0;
    int n = at < x->size ? st_utf8_scan((const unsigned char *)x->text + at, x->size - at, &cp) : 0;
    *length = n > 0 ? (size_t)n : 1;
    return cp;
}

static char peek(const struct lexer *x, size_t ahead)
{
    return x->at + ahead < x->size ? x->text[x->at + ahead] : 0;
}

static bool starts(const struct lexer *x, size_t at, const char *with)
{
    size_t n = strlen(with);
    return n <= x->size - at && memcmp(x->text + at, with, n) == 0;
}

static size_t skip_spaces(const struct lexer *x, size_t at)
{
    size_t n;
    while (at < x->size && st_j_space(peek_cp(x, at, &n)))
        at += n;
    return at;
}

static void emit(struct lexer *x, enum st_jtoken_kind kind, size_t from, size_t to, int op)
{
    if (x->count == x->room) {
        size_t room = x->room ? 2 * x->room : 256;
        struct st_jtoken *more = st_j_alloc(x->j, room, sizeof *more);
        if (!more)
            return;
        if (x->count)
            memcpy(more, x->tokens, x->count * sizeof *more);
        x->tokens = more;
        x->room = room;
    }
    x->tokens[x->count++] = (struct st_jtoken){kind, x->line, op, x->text + from, to - from};
}

/* Moves on and counts lines. */
static void advance(struct lexer *x, size_t to)
{
    for (; x->at < to; x->at++)
        x->line += x->text[x->at] == '\n';
}

/* Emits the text [at, to) in front of a tag with the given sign; blocks and comments (not variables) lose their indent.
 */
static void emit_data(struct lexer *x, size_t to, char sign, bool indent_goes)
{
    size_t end = to;
    if (sign == '-') {
        struct st_jstring s = {.size = to - x->at, .data = x->text + x->at};
        struct st_jvalue kept = st_j_strip(x->j, &s, NULL, 1);
        end = x->j->failed ? x->at : x->at + kept.of.string->size;
    } else if (sign != '+' && indent_goes) {
        size_t line = to;
        while (line > x->at && x->text[line - 1] != '\n')
            line--;
        if ((line > x->at || x->line_start) && skip_spaces(x, line) >= to)
            end = line;
    }
    if (end > x->at)
        emit(x, ST_T_DATA, x->at, end, 0);
    advance(x, to);
}

/* Takes the end of a tag: its sign (0: none) and two characters; after "-" all white space, otherwise, if it trims and
 * there is no "+", one newline. */
static void take_end(struct lexer *x, char sign, bool trims)
{
    size_t end = x->at + (sign != 0) + 2;
    if (sign == '-')
        end = skip_spaces(x, end);
    else if (trims && sign != '+' && end < x->size && x->text[end] == '\n')
        end++;
    x->line_start = x->text[end - 1] == '\n';
    advance(x, end);
}

static void lex_comment(struct lexer *x, size_t begin)
{
    size_t end = begin;
    while (end + 1 < x->size && !starts(x, end, "#}"))
        end++;
    if (end + 1 >= x->size) {
        st_j_fail(x->j, STRATA_E_FORMAT, "a comment is not closed");
        return;
    }
    char sign = end > begin ? x->text[end - 1] : 0;
    bool has_sign = sign == '-' || sign == '+';
    advance(x, has_sign ? end - 1 : end);
    take_end(x, has_sign ? sign : 0, true);
}

/* At "{%": is this a raw block's tag of that name? Returns the position after it, 0 if not. sign: before the "%}". */
static size_t raw_tag(const struct lexer *x, size_t at, const char *name, char *sign)
{
    at += 2;
    if (at < x->size && (x->text[at] == '-' || x->text[at] == '+'))
        at++;
    at = skip_spaces(x, at);
    if (!starts(x, at, name))
        return 0;
    at = skip_spaces(x, at + strlen(name));
    *sign = at < x->size && (x->text[at] == '-' || x->text[at] == '+') ? x->text[at] : 0;
    return starts(x, at + (*sign != 0), "%}") ? at : 0;
}

/* At the end of the tag "raw": what follows is data up to "endraw". */
static void lex_raw(struct lexer *x, char sign)
{
    take_end(x, sign, false);
    for (size_t at = x->at; at + 1 < x->size; at++) {
        char closing, opening = at + 2 < x->size ? x->text[at + 2] : 0;
        size_t close;
        if (!starts(x, at, "{%") || !(close = raw_tag(x, at, "endraw", &closing)))
            continue;
        emit_data(x, at, opening, true);
        advance(x, close);
        take_end(x, closing, true);
        return;
    }
    st_j_fail(x->j, STRATA_E_FORMAT, "a raw block is not closed");
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Digits with single underscores between them. */
static size_t skip_digits(const struct lexer *x, size_t at)
{
    while (at < x->size &&
           (is_digit(x->text[at]) || (x->text[at] == '_' && at + 1 < x->size && is_digit(x->text[at + 1]))))
        at++;
    return at;
}

static void lex_number(struct lexer *x)
{
    size_t from = x->at, end = from;
    char kind = peek(x, 0) == '0' ? (char)(peek(x, 1) | 0x20) : 0;
    if (kind == 'x' || kind == 'o' || kind == 'b') {
        for (end += 2;
             end < x->size && (is_digit(x->text[end]) || x->text[end] == '_' ||
                               (kind == 'x' && (x->text[end] | 0x20) >= 'a' && (x->text[end] | 0x20) <= 'f'));)
            end++;
        emit(x, ST_T_INTEGER, from, end, 0);
        advance(x, end);
        return;
    }
    end = skip_digits(x, end);
    bool real = false;
    if (from == 0 || x->text[from - 1] != '.') { /* in a.1.2 the numbers are items */
        if (end + 1 < x->size && x->text[end] == '.' && is_digit(x->text[end + 1])) {
            end = skip_digits(x, end + 1);
            real = true;
        }
        if (end < x->size && (x->text[end] | 0x20) == 'e') {
            size_t digits = end + 1;
            if (digits < x->size && (x->text[digits] == '-' || x->text[digits] == '+'))
                digits++;
            if (digits < x->size && is_digit(x->text[digits])) {
                end = skip_digits(x, digits);
                real = true;
            }
        }
    }
    emit(x, real ? ST_T_FLOAT : ST_T_INTEGER, from, end, 0);
    advance(x, end);
}

static bool name_cp(uint32_t cp)
{
    if (cp < 0x80)
        return cp == '_' || (cp >= '0' && cp <= '9') || ((cp | 0x20) >= 'a' && (cp | 0x20) <= 'z');
    utf8proc_category_t c = utf8proc_category((int32_t)cp);
    return (c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_MC) || c == UTF8PROC_CATEGORY_ND;
}

static void lex_string(struct lexer *x)
{
    char quote = x->text[x->at];
    size_t end = x->at + 1;
    while (end < x->size && x->text[end] != quote)
        end += x->text[end] == '\\' ? 2 : 1;
    if (end >= x->size) {
        st_j_fail(x->j, STRATA_E_FORMAT, "a string is not closed");
        return;
    }
    emit(x, ST_T_STRING, x->at + 1, end, 0);
    advance(x, end + 1);
}

/* Inside a tag: everything up to its end ("}}" or "%}"), which does not count between open brackets. */
static void lex_tag(struct lexer *x, bool block)
{
    char open[ST_J_NESTING + 1];
    size_t depth = 0;
    const char *end = block ? "%}" : "}}";
    for (;;) {
        x->at = x->j->failed ? x->size : x->at;
        size_t n, spaces = skip_spaces(x, x->at);
        advance(x, spaces);
        if (x->at >= x->size) {
            st_j_fail(x->j, STRATA_E_FORMAT, "a tag is not closed with %s", end);
            return;
        }
        char c = x->text[x->at];
        bool sign = (c == '-' || (block && c == '+')) && starts(x, x->at + 1, end);
        if (depth == 0 && (sign || starts(x, x->at, end))) {
            emit(x, block ? ST_T_BLOCK_END : ST_T_VARIABLE_END, x->at, x->at, 0);
            take_end(x, sign ? c : 0, block);
            return;
        }
        if (is_digit(c)) {
            lex_number(x);
        } else if (c == '"' || c == '\'') {
            lex_string(x);
        } else if (name_cp(peek_cp(x, x->at, &n))) {
            size_t stop = x->at;
            while (stop < x->size && name_cp(peek_cp(x, stop, &n)))
                stop += n;
            emit(x, ST_T_NAME, x->at, stop, 0);
            advance(x, stop);
        } else {
            static const char pairs[] = "//**==!=>=<=", singles[] = "+-/*%~[](){}><=.:|,;";
            int op = 0;
            for (size_t i = 0; i + 1 < sizeof pairs && !op; i += 2)
                if (c == pairs[i] && peek(x, 1) == pairs[i + 1])
                    op = ST_OP2(pairs[i], pairs[i + 1]);
            if (!op && c && strchr(singles, c))
                op = c;
            if (!op) {
                st_j_fail(x->j, STRATA_E_FORMAT, "unexpected character '%.*s'", (int)n, x->text + x->at);
                return;
            }
            if (op == '(' || op == '[' || op == '{') {
                if (depth == ST_J_NESTING) {
                    st_j_fail(x->j, STRATA_E_LIMIT, "brackets are nested more than %d deep", ST_J_NESTING);
                    return;
                }
                open[depth++] = op == '(' ? ')' : op == '[' ? ']' : '}';
            } else if ((op == ')' || op == ']' || op == '}') && (depth == 0 || open[--depth] != op)) {
                st_j_fail(x->j, STRATA_E_FORMAT, "unexpected '%c'", op);
                return;
            }
            size_t width = op > 0xFF ? 2 : 1;
            emit(x, ST_T_OPERATOR, x->at, x->at + width, op);
            advance(x, x->at + width);
        }
    }
}

struct st_jtoken *st_j_lex(struct st_j *j, const char *text, size_t size)
{
    struct lexer x = {.j = j, .text = text, .size = size, .line = 1, .line_start = true};
    while (x.at < x.size && !j->failed) {
        size_t tag = x.at;
        while (tag + 1 < x.size &&
               !(text[tag] == '{' && (text[tag + 1] == '{' || text[tag + 1] == '%' || text[tag + 1] == '#')))
            tag++;
        if (tag + 1 >= x.size) {
            emit(&x, ST_T_DATA, x.at, x.size, 0);
            break;
        }
        char kind = text[tag + 1], sign = tag + 2 < x.size ? text[tag + 2] : 0;
        bool has_sign = sign == '-' || sign == '+';
        emit_data(&x, tag, sign, kind != '{');
        j->line = x.line;
        char closing;
        size_t raw = kind == '%' ? raw_tag(&x, tag, "raw", &closing) : 0;
        if (kind == '#') {
            lex_comment(&x, tag + 2 + has_sign);
        } else if (raw && closing != '+') {
            advance(&x, raw);
            lex_raw(&x, closing);
        } else {
            emit(&x, kind == '%' ? ST_T_BLOCK_BEGIN : ST_T_VARIABLE_BEGIN, tag, tag + 2, 0);
            advance(&x, tag + 2 + has_sign);
            lex_tag(&x, kind == '%');
        }
    }
    emit(&x, ST_T_END, x.size, x.size, 0);
    return j->failed ? NULL : x.tokens;
}
