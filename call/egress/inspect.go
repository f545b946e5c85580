package egress

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"palyra/internal/fault"
)

// MaxInspect is how many rules of inspection a call can have.
const MaxInspect = 64

// Bounds of the parts of a rule, in numbers and bytes.
const (
	maxMethods = 16
	maxMethod  = 24
	maxPath    = 256
	maxPins    = 4
)

// Inspect is a rule about the requests to one host: palyra-egress reads the connections to it and
// lets through those requests that a rule matches. Make one with ParseInspect; the zero Inspect
// matches nothing.
type Inspect struct {
	Methods []string // upper case, sorted, unique; empty: all
	Host    Rule     // about a name, or the names below one
	Path    string   // in normal form, "" for all: this path and those below it
	Sockets bool     // the requests may become WebSockets
	Body    int64    // bytes of a request's body at most, or that a WebSocket sends; 0: any
	Answer  int64    // bytes of its answer's, or that a WebSocket gets; 0: any
	Pins    []string // of the host's keys, sorted, unique: "sha256/" and base 64; empty: any key
}

// ParseInspect reads [METHODS " "] HOST[:PORT] [PATH] [" websocket"] [" body:" SIZE]
// [" answer:" SIZE] [" pin:" PIN]…, as people type it.
func ParseInspect(text string) (Inspect, error) {
	words := strings.Fields(text)
	pins, words, err := pinned(words)
	var bounds Bounds
	if err == nil {
		bounds, words, err = bodies(words)
	}
	var in Inspect
	if err == nil {
		sockets := len(words) > 1 && words[len(words)-1] == webSocket
		if sockets {
			words = words[:len(words)-1]
		}
		in, err = parseInspect(words)
		in.Sockets, in.Pins, in.Body, in.Answer = sockets, pins, bounds.Body, bounds.Answer
	}
	if err == nil && in.Sockets && len(in.Methods) > 0 && !slices.Contains(in.Methods, "GET") {
		err = errors.New("a WebSocket begins with GET, which isn't among the methods")
	}
	if err != nil {
		return Inspect{}, fault.New(fault.Usage, "invalid_input", fmt.Sprintf("inspection rule %q", clip(text)), err).
			WithHint("[METHODS ]NAME[:PORT][/PATH][ websocket][ body:SIZE][ answer:SIZE][ pin:sha256/BASE64]: \"GET,HEAD packages.example:443/simple/\"")
	}
	return in, nil
}

// webSocket is the word of a rule whose requests may become WebSockets (RFC 6455).
const webSocket = "websocket"

// pinned takes the pins off the end of a rule's words.
func pinned(words []string) (pins, rest []string, err error) {
	for len(words) > 0 {
		pin, ok := strings.CutPrefix(words[len(words)-1], "pin:")
		if !ok {
			break
		}
		digest, ok := strings.CutPrefix(pin, pinDigest)
		sum, err := base64.StdEncoding.Strict().DecodeString(digest)
		if !ok || err != nil || len(sum) != sha256.Size || PinOf(sum) != pin {
			return nil, nil, fmt.Errorf("pin %q: want sha256/ and the SHA-256 of a public key in base 64", clip(pin))
		}
		pins, words = append(pins, pin), words[:len(words)-1]
	}
	slices.Sort(pins)
	if pins = slices.Compact(pins); len(pins) > maxPins {
		return nil, nil, fmt.Errorf("%d pins, at most %d", len(pins), maxPins)
	}
	return pins, words, nil
}

// bodies takes the bounds of bodies off the end of a rule's words.
func bodies(words []string) (b Bounds, rest []string, err error) {
	n := len(words)
	for n > 1 && (strings.HasPrefix(words[n-1], boundBody+":") || strings.HasPrefix(words[n-1], boundAnswer+":")) {
		n--
	}
	b, err = parseBounds(words[n:])
	return b, words[:n], err
}

const pinDigest = "sha256/"

// PinOf returns the pin of a key whose SubjectPublicKeyInfo has this SHA-256 (RFC 7469 §2.4).
func PinOf(sum []byte) string { return pinDigest + base64.StdEncoding.EncodeToString(sum) }

func parseInspect(words []string) (in Inspect, err error) {
	switch len(words) {
	case 1:
	case 2:
		if in.Methods, err = methods(words[0]); err != nil {
			return Inspect{}, err
		}
		words = words[1:]
	default:
		return Inspect{}, errors.New("want methods and a host, or a host alone")
	}
	if strings.Contains(words[0], "://") {
		return Inspect{}, errors.New("a rule is a host, a port and a path, not a URL")
	}
	host, path := words[0], ""
	if at := strings.IndexByte(host, '/'); at >= 0 {
		host, path = host[:at], host[at:]
	}
	if in.Host, err = parseRule(host); err != nil {
		return Inspect{}, err
	}
	if in.Host.network.IsValid() {
		return Inspect{}, errors.New("requests are inspected by the name of their host, not by an address")
	}
	in.Path, err = rulePath(path)
	if err != nil {
		return Inspect{}, err
	}
	return in, nil
}

// rulePath checks the path of a rule, which is in normal form; "/" is all paths.
func rulePath(path string) (string, error) {
	if path == "" || path == "/" {
		return "", nil
	}
	if len(path) > maxPath {
		return "", fmt.Errorf("a path has at most %d bytes", maxPath)
	}
	normal, err := Path(path)
	if err != nil {
		return "", err
	}
	if normal != path {
		return "", fmt.Errorf("a path in another form: write %s", normal)
	}
	return path, nil
}

// methods reads a list of methods, which are spelled in capitals (RFC 9110 §9.1).
func methods(text string) ([]string, error) {
	list := strings.Split(strings.ToUpper(text), ",")
	for _, m := range list {
		switch {
		case m == "" || len(m) > maxMethod || strings.Trim(m, "ABCDEFGHIJKLMNOPQRSTUVWXYZ-") != "":
			return nil, fmt.Errorf("method %q: want 1 to %d letters", clip(m), maxMethod)
		case m == "CONNECT":
			return nil, errors.New("CONNECT asks for a connection, which a rule for its host allows")
		}
	}
	slices.Sort(list)
	if list = slices.Compact(list); len(list) > maxMethods {
		return nil, fmt.Errorf("%d methods, at most %d", len(list), maxMethods)
	}
	return list, nil
}

// String returns the canonical text, which ParseInspect reads as in.
func (in Inspect) String() string {
	text := in.Host.String() + in.Path
	if len(in.Methods) > 0 {
		text = strings.Join(in.Methods, ",") + " " + text
	}
	if in.Sockets {
		text += " " + webSocket
	}
	text += Bounds{Body: in.Body, Answer: in.Answer}.String()
	for _, p := range in.Pins {
		text += " pin:" + p
	}
	return text
}

// Names reports whether in is about the requests to name, which is canonical, and port.
func (in Inspect) Names(name string, port uint16) bool {
	return in.Host.port == port && in.Host.names(name)
}

// Matches reports whether in lets the request through. path is the request's, as it stands there
// without its query. A rule that names a path matches none that [Path] refuses.
func (in Inspect) Matches(name string, port uint16, method, path string) bool {
	return in.Names(name, port) && matches(in.Methods, in.Path, method, path)
}

// matches compares a request with methods and path of a rule.
func matches(methods []string, below, method, path string) bool {
	if len(methods) > 0 && !slices.Contains(methods, method) {
		return false
	}
	if below == "" {
		return true
	}
	normal, err := Path(path)
	if err != nil {
		return false
	}
	rest, ok := strings.CutPrefix(normal, below)
	return ok && (rest == "" || strings.HasSuffix(below, "/") || rest[0] == '/')
}

// pchar are the characters of a segment besides letters, digits and escapes (RFC 3986 §3.3).
const pchar = "-._~!$&'()*+,;=:@"

// Path returns the normal form of a request's path: escapes of unreserved characters undone, others
// in capitals, and the printable characters escaped that no path has. It refuses paths that two
// readers may take for different ones: dot segments, empty segments, escaped slashes, backslashes
// and NUL in every spelling, escapes of escapes, parameters behind dots ("/..;/"), and escapes that
// aren't UTF-8.
func Path(text string) (string, error) {
	if !strings.HasPrefix(text, "/") {
		return "", errors.New("a path begins with '/'")
	}
	var out []byte
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c != '%' {
			switch {
			case c == '/' || letterOrDigit(c) || strings.IndexByte(pchar, c) >= 0:
				out = append(out, c)
			case c <= ' ' || c >= 0x7f || c == '\\' || c == '?' || c == '#':
				return "", fmt.Errorf("%q in a path", rune(c))
			default:
				out = append(out, escape(c)...)
			}
			continue
		}
		d, ok := unescape(text[i:])
		if !ok {
			return "", errors.New("'%' without two hexadecimal digits in a path")
		}
		i += 2
		switch {
		case d == '/' || d == '\\' || d < ' ' || d == 0x7f:
			return "", fmt.Errorf("an escaped %q in a path", rune(d))
		case letterOrDigit(d) || strings.IndexByte("-._~", d) >= 0:
			out = append(out, d)
		default:
			out = append(out, escape(d)...)
		}
	}
	for rest := string(out); ; {
		_, behind, percent := strings.Cut(rest, "%25")
		if !percent {
			break
		}
		if _, twice := unescape("%" + behind); twice {
			return "", errors.New("an escaped escape in a path")
		}
		rest = behind
	}
	segments := strings.Split(string(out[1:]), "/")
	for i, s := range segments {
		plain, _, _ := strings.Cut(s, ";")
		plain = strings.ReplaceAll(plain, "%3B", ";")
		plain, _, _ = strings.Cut(plain, ";")
		bare, _ := url.PathUnescape(plain) // its escapes are well-formed
		switch {
		case !utf8.ValidString(bare): // "%c0%ae" is a dot to some
			return "", errors.New("an escape that isn't UTF-8 in a path")
		case bare != "" && strings.Trim(bare, ". ") == "": // Windows drops dots and blanks at a name's end
			return "", errors.New("a dot segment in a path")
		case s == "" && i < len(segments)-1:
			return "", errors.New("an empty segment in a path")
		}
	}
	return string(out), nil
}

func letterOrDigit(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}

func escape(c byte) string { return fmt.Sprintf("%%%02X", c) }

// unescape reads the escape that text begins with.
func unescape(text string) (byte, bool) {
	if len(text) < 3 {
		return 0, false
	}
	b, err := hex.DecodeString(text[1:3])
	if err != nil {
		return 0, false
	}
	return b[0], true
}

// ParseInspects reads rules in any order, and drops those that are there twice.
func ParseInspects(texts []string) ([]Inspect, error) {
	return parseList("inspection rules", MaxInspect, texts, ParseInspect)
}

// ParseCanonicalInspects reads rules that are canonical, sorted and unique.
func ParseCanonicalInspects(texts []string) ([]Inspect, error) {
	return canonicalList("inspection rules", texts, ParseInspects)
}

// Strings returns the canonical texts of a list, in its order. It's never nil.
func Strings[T fmt.Stringer](list []T) []string {
	out := make([]string, len(list))
	for i, x := range list {
		out[i] = x.String()
	}
	return out
}

func parseList[T fmt.Stringer](what string, most int, texts []string, parse func(string) (T, error)) ([]T, error) {
	if len(texts) > most {
		return nil, fault.New(fault.Usage, "invalid_input", what, fmt.Errorf("%d, at most %d are allowed", len(texts), most))
	}
	var out []T
	for _, t := range texts {
		x, err := parse(t)
		if err != nil {
			return nil, err
		}
		out = append(out, x)
	}
	slices.SortFunc(out, func(a, b T) int { return strings.Compare(a.String(), b.String()) })
	return slices.CompactFunc(out, func(a, b T) bool { return a.String() == b.String() }), nil
}

func canonicalList[T fmt.Stringer](what string, texts []string, parse func([]string) ([]T, error)) ([]T, error) {
	list, err := parse(texts)
	if err == nil && !slices.Equal(Strings(list), texts) {
		err = fault.New(fault.Usage, "invalid_input", what, errors.New("not canonical, sorted and unique"))
	}
	if err != nil {
		return nil, err
	}
	return list, nil
}
