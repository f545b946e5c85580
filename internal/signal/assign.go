package signal

import (
	"bytes"
	"encoding/base64"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// The classes of names that values have.
type class int

const (
	plain   class = iota
	weak          // of a secret, or of something else: "key", "token"
	strong        // of a secret: "password", "api_key"
	headers       // Authorization
	cookies       // Cookie, Set-Cookie
)

const maxKey = 64

// nameClass says what stands behind a name, and the kind of secret.
func nameClass(name []byte) (class, string) {
	n := make([]byte, 0, maxKey)
	for _, c := range name {
		if isUpper(c) {
			c += 'a' - 'A'
		}
		if isAlnum(c) {
			n = append(n, c)
		}
	}
	key := string(n)
	switch key {
	case "authorization", "proxyauthorization":
		return headers, "authorization"
	case "cookie", "setcookie":
		return cookies, "cookie"
	}
	for _, end := range []string{"ref", "reference", "name", "id", "ids", "file", "path", "dir", "url", "uri", "type", "length", "len", "size", "count", "policy", "field",
		"label", "hint", "expiry", "expires", "expiresin", "expiration", "ttl", "placeholder", "version", "env", "var", "algorithm", "alg", "format", "usage", "limit", "rotation", "manager", "scanner"} {
		if strings.HasSuffix(key, end) {
			return plain, ""
		}
	}
	for _, part := range []string{"public", "next", "page", "continuation", "cursor", "csrf", "max", "foreign", "primary", "cache", "sort", "partition", "idempotency", "tokenizer", "vkey", "pubkey", "verif", "keyword", "secretary"} {
		if strings.Contains(key, part) {
			return plain, ""
		}
	}
	for _, k := range []struct{ part, kind string }{
		{"password", "password"}, {"passwd", "password"}, {"passphrase", "password"}, {"passwort", "password"}, {"apikey", "api_key"}, {"accesskey", "secret_key"},
		{"secretkey", "secret_key"}, {"privatekey", "private_key"}, {"accountkey", "secret_key"}, {"encryptionkey", "secret_key"}, {"signingkey", "secret_key"},
		{"accesstoken", "token"}, {"refreshtoken", "token"}, {"authtoken", "token"}, {"apitoken", "token"}, {"bearertoken", "token"}, {"secret", "secret"}, {"credential", "secret"},
	} {
		if strings.Contains(key, k.part) {
			return strong, k.kind
		}
	}
	switch {
	case strings.HasSuffix(key, "pwd"), strings.HasSuffix(key, "pass") && !strings.HasSuffix(key, "compass") && !strings.HasSuffix(key, "bypass"):
		return strong, "password"
	case strings.HasSuffix(key, "token"), strings.HasSuffix(key, "pat"):
		return weak, "token"
	case strings.HasSuffix(key, "key"), strings.HasSuffix(key, "auth"):
		return weak, "secret_key"
	}
	return plain, ""
}

func isName(c byte) bool { return isWord(c) || c == '-' || c == '.' }

// assignment finds the value behind a name and the sign at i: NAME=VALUE, "NAME": "VALUE" (also
// within a string, with escapes), NAME: VALUE, <NAME>VALUE<.
func (s *scanner) assignment(i int) {
	b := s.b
	c := b[i]
	next := byte(0)
	if i+1 < len(b) {
		next = b[i+1]
	}
	if c == '>' && (i == 0 || !isName(b[i-1])) || c == ':' && (next == ':' || bytes.HasPrefix(b[i:], []byte("://"))) || c == '=' && next == '=' {
		return
	}
	// The name, from its end.
	to := i
	for to > 0 && i-to < 8 && (b[to-1] == ' ' || b[to-1] == '\t' || c == '=' && b[to-1] == ':') {
		to--
	}
	quoted := false
	if to > 0 && strings.IndexByte("\"'`", b[to-1]) >= 0 {
		quoted = true
		for to--; to > 0 && b[to-1] == '\\'; to-- {
		}
	}
	from := to
	for from > 0 && to-from < maxKey && isName(b[from-1]) {
		from--
	}
	if strings.IndexByte("nrt", b[from]) >= 0 && from > 0 && slashes(b, from)%2 == 1 && from < to { // \nNAME
		from++
	}
	if from == to || c == '>' && (from == 0 || b[from-1] != '<') {
		return
	}
	k, kind := nameClass(b[from:to])
	if k == plain || !s.values.may(i) {
		return
	}
	i++
	if c == '=' && next == '>' || c == ':' && next == '=' {
		i++
	}
	switch k {
	case headers:
		s.authorization(i)
		return
	case cookies:
		s.cookie(i)
		return
	}
	v, whole := value(b, i, c == '>', !quoted && opens(b, from))
	s.values.did(v.To)
	if v.To > v.From && judge(b[v.From:v.To], k, kind, whole) {
		severity := High
		if k == strong {
			severity = Critical
		}
		s.add(kind, severity, v.From, v.To, false)
	}
}

// opens reports whether a name at i is the first of its line.
func opens(b []byte, i int) bool {
	i = len(bytes.TrimRight(b[:i], " \t-"))
	if i >= 6 && string(b[i-6:i]) == "export" {
		i = len(bytes.TrimRight(b[:i-6], " \t"))
	}
	return i == 0 || b[i-1] == '\n' || b[i-1] == 'n' && slashes(b, i-1)%2 == 1
}

const maxValue = 2048

// value returns where the value behind i stands. whole says that it's in quotes. alone says that
// it's all there is on its line.
func value(b []byte, i int, tag, alone bool) (v Finding, whole bool) {
	for n := 0; i < len(b) && n < 8 && (b[i] == ' ' || b[i] == '\t'); n++ {
		i++
	}
	q := i
	for q < len(b) && b[q] == '\\' {
		q++
	}
	if q < len(b) && strings.IndexByte("\"'`", b[q]) >= 0 && !tag {
		depth, quote := q-i, b[q]
		from := q + 1
		for j := from; j < len(b) && j-from < maxValue && b[j] != '\n' && b[j] != 0; j++ {
			if b[j] != quote {
				continue
			}
			n := min(slashes(b, j), j-from)
			if depth == 0 && n%2 == 1 || depth > 0 && n > depth {
				continue
			}
			return Finding{From: from, To: j - min(n, depth)}, true
		}
		return Finding{From: from, To: from}, false
	}
	j := i
	for ; j < len(b) && j-i < maxValue; j++ {
		c := b[j]
		if c <= ' ' || strings.IndexByte("\"'`<>", c) >= 0 || c == '\\' && j+1 < len(b) && strings.IndexByte("nrt\"'\\", b[j+1]) >= 0 {
			break
		}
		if !alone && !tag && strings.IndexByte(",;&)]}|", c) >= 0 {
			break
		}
		if bytes.HasPrefix(b[j:], []byte("⟦")) {
			break
		}
	}
	to := i + len(bytes.TrimRight(b[i:j], ".,;)]}"))
	return Finding{From: i, To: to}, false
}

// The patterns are compiled when one is wanted: most processes want none.
var (
	lookup = once(`^(?i:process\.env|os\.(environ|getenv)|import\.meta|deno\.env|getenv|env[.(\["']|std::env|system\.getenv|secrets?\.|var\.|local\.|data\.|config[.\[]|settings[.\[]|self\.|this\.|request\.|req\.|input\.|params|args|opts|options\.)`)
	caller = once(`^&?[A-Za-z_$][\w$]*((\.|->|::)[A-Za-z_$][\w$]*)*[(\[{]`)
	chain  = once(`^&?[A-Za-z_$][\w$]*((\.|->|::)[A-Za-z_$][\w$]*)+$`)
	envish = once(`^[A-Z][A-Z0-9]*(_[A-Z0-9]+)+$`)
	uuid   = once(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)
	digest = once(`^(?i:(sha|md)[0-9]+[-:=])`)
)

func once(pattern string) func(v []byte) bool {
	compiled := sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(pattern) })
	return func(v []byte) bool { return compiled().Match(v) }
}

// reference reports whether a value says where a secret is, and isn't one.
func reference(v []byte) bool {
	for _, p := range []string{"$", "{", "<", "[", "%", "@", "!", "*", "//", "./", "../", "~/", "arn:", "env:", "file:", "keyring:", "ref:", "op:", "sops:", "projects/"} {
		if bytes.HasPrefix(v, []byte(p)) && !(p == "%" && len(v) > 2 && isHex(v[1]) && isHex(v[2]) && v[len(v)-1] != '%') {
			// A password may begin with one of these, too, but then it's long and has digits within.
			return !strings.Contains("!@*%", p) || !random(v[1:])
		}
	}
	return bytes.Contains(v, []byte(":/")) || bytes.Contains(v, []byte("${")) || bytes.Contains(v, []byte("{{")) || lookup(v)
}

// placeholder reports whether a value stands for one to be put in.
func placeholder(v []byte) bool {
	t := strings.ToLower(string(v))
	if len(t) == 0 || strings.Count(t, t[:1]) == len(t) {
		return true
	}
	if slices.Contains([]string{"password", "passwd", "pass", "pwd", "secret", "token", "key", "user", "username", "none", "null", "nil", "true", "false", "undefined",
		"string", "required", "optional", "hidden", "test", "testing", "abc123", "foobar", "admin", "root", "default", "value", "postgres", "mysql", "guest"}, t) {
		return true
	}
	for _, part := range []string{"example", "changeme", "change-me", "change_me", "placeholder", "your_", "your-", "yourpass", "yourkey", "yourtoken", "xxxx", "****", "....", "dummy", "redacted",
		"replace", "insert_", "insert-", "not-real", "notreal", "todo", "<", "0123456789", "1234567890", "abcdefgh"} {
		if strings.Contains(t, part) {
			return true
		}
	}
	return false
}

// code reports whether a value is part of a program rather than a text.
func code(v []byte) bool {
	return caller(v) || bytes.Contains(v, []byte("()")) || !random(v) && chain(v)
}

// mixed reports whether a value has letters and digits, as what is random has.
func mixed(v []byte) bool {
	return bytes.IndexFunc(v, func(r rune) bool { return r >= '0' && r <= '9' }) >= 0 &&
		bytes.IndexFunc(v, func(r rune) bool { return r|0x20 >= 'a' && r|0x20 <= 'z' }) >= 0
}

// random reports whether a value looks as if it were drawn at random.
func random(v []byte) bool { return len(v) >= 16 && mixed(v) && entropy(v) >= 3.5 }

// judge says whether the value of a name is a secret. whole says that it stands in quotes.
func judge(v []byte, k class, kind string, whole bool) bool {
	switch {
	case reference(v), placeholder(v), envish(v), digest(v), code(v):
		return false
	case k == weak:
		hex := while(v, 0, len(v), isHex) == len(v)
		return random(v) && !uuid(v) && !(hex && kind != "token") && !bytes.ContainsAny(v, " \t")
	case len(v) < 6:
		return false
	case bytes.ContainsAny(v, " \t"):
		return random(v) || kind == "password" && mixed(v) && bytes.Count(v, []byte(" ")) < 8
	}
	if mixed(v) {
		return true
	}
	signs := bytes.ContainsAny(v, "!#$%^*?~@")
	letters := bytes.ContainsFunc(v, func(r rune) bool { return r|0x20 >= 'a' && r|0x20 <= 'z' })
	return signs && letters && len(v) >= 8 || len(v) >= 20 && entropy(v) >= 3.8
}

// authorization finds the credentials in a header of that name.
func (s *scanner) authorization(i int) {
	b := s.b
	v, _ := value(b, i, false, false)
	word := b[v.From:v.To]
	scheme := strings.ToLower(string(word))
	if slices.Contains([]string{"bearer", "basic", "token", "apikey", "digest", "negotiate", "splunk"}, scheme) || len(word) == 0 {
		from := v.To
		from = while(b, from, 4, func(c byte) bool { return c == ' ' })
		v, _ = value(b, from, false, false)
		word = b[v.From:v.To]
	} else if name, _, ok := bytes.Cut(word, []byte(" ")); ok { // in quotes
		v.From += len(name) + 1
		word, scheme = b[v.From:v.To], strings.ToLower(string(name))
	}
	if len(word) < 8 || reference(word) || placeholder(word) {
		return
	}
	if scheme == "basic" {
		if plain, err := base64.StdEncoding.DecodeString(string(word)); err != nil || !bytes.Contains(plain, []byte(":")) {
			return
		}
	} else if !mixed(word) || code(word) {
		return
	}
	s.add("authorization", Critical, v.From, v.To, false)
}

// cookie finds the values of cookies.
func (s *scanner) cookie(i int) {
	b := s.b
	to := while(b, i, maxValue, func(c byte) bool { return c >= ' ' && strings.IndexByte("\"\\", c) < 0 })
	s.values.did(to)
	for from := i; from < to; {
		end := to
		if n := bytes.IndexByte(b[from:to], ';'); n >= 0 {
			end = from + n
		}
		if n := bytes.IndexByte(b[from:end], '='); n >= 0 {
			at := from + n + 1
			stop := while(b, at, end-at, func(c byte) bool { return c > ' ' })
			if v := b[at:stop]; random(v) && !reference(v) && !placeholder(v) {
				s.add("cookie", Critical, at, stop, false)
			}
		}
		from = end + 1
	}
}
