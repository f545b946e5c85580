package toolproto

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"palyra/internal/canon"
)

// Fetch is the name of the tool.
const Fetch = "http.fetch"

// FetchInput is the input of http.fetch. The kernel reads the hosts of URL and EgressHosts.
type FetchInput struct {
	URL     string   `json:"url" tool:"required,min=1,max=2048" doc:"https:// or http://, a host, and what is asked of it; no user or password, no fragment"`
	Method  string   `json:"method" tool:"default=GET,enum=GET|HEAD|POST" doc:"what is asked"`
	Headers []string `json:"headers,omitempty" tool:"max=6,maxlen=1024" doc:"NAME: VALUE. Names are accept, accept-language, if-none-match, if-modified-since, user-agent and, with POST, content-type. No credentials"`

	CredentialBindings []string `json:"credential_bindings,omitempty" tool:"max=8,maxlen=700" doc:"HEADER: [SCHEME ]vault://SCOPE/KEY, such as authorization: Bearer vault://global/api: palyra-egress puts the secret into this header of the requests to the URL's host, over https, if policy permits that. It goes to no other host, and the tool can't read it"`

	Body string `json:"body,omitempty" doc:"what a POST sends, in the encoding"`

	Encoding            string   `json:"encoding" tool:"default=utf-8,enum=utf-8|base64" doc:"how body spells bytes"`
	EgressHosts         []string `json:"egress_hosts,omitempty" tool:"max=8,maxlen=300" doc:"HOST:PORT, or HOST for port 443: further hosts, which redirects may lead to, beside the URL's own; and the network (10.1.0.0/16:443) of a host whose address is private"`
	AllowRedirects      bool     `json:"allow_redirects" tool:"default=true" doc:"follow redirects to the hosts that the call names; without, the redirect is the result"`
	MaxRedirects        int64    `json:"max_redirects" tool:"default=3,min=1,max=10" doc:"how many to follow"`
	MaxResponseBytes    int64    `json:"max_response_bytes" tool:"default=524288,min=1,max=4194304" doc:"how much of the answer to return; the rest is cut off"`
	AllowedContentTypes []string `json:"allowed_content_types,omitempty" tool:"max=32,maxlen=128" doc:"TYPE/SUBTYPE or TYPE/*: answers of other types are refused; left out, texts: HTML, plain, Markdown, CSS, CSV, JavaScript, JSON and XML"`
	ConnectTimeoutMS    int64    `json:"connect_timeout_ms" tool:"default=5000,min=1,max=30000" doc:"for each connection, TLS included, in milliseconds"`
	RequestTimeoutMS    int64    `json:"request_timeout_ms" tool:"default=10000,min=1,max=60000" doc:"for all of it, in milliseconds"`
}

// fetchTypes are the types of answers that are taken where an input names none.
var fetchTypes = []string{"text/html", "text/plain", "text/markdown", "text/css", "text/csv", "text/javascript", "text/xml",
	"application/javascript", "application/json", "application/xhtml+xml", "application/xml"}

// fetchHeaders are the headers that an input may give.
var fetchHeaders = []string{"accept", "accept-language", "content-type", "if-modified-since", "if-none-match", "user-agent"}

// Bytes returns the body.
func (in *FetchInput) Bytes() ([]byte, error) { return decodeContent(in.Body, in.Encoding) }

// Check checks what the bounds of single members do not.
func (in *FetchInput) Check() error {
	if _, err := in.Bytes(); err != nil {
		return err
	}
	if in.Body != "" && in.Method != "POST" {
		return usage("invalid_input", "check body", errors.New("only a POST has one"))
	}
	var seen []string
	for _, h := range in.Headers {
		name, _, err := FetchHeader(h)
		switch {
		case err != nil:
			return err
		case slices.Contains(seen, name):
			return usage("invalid_input", "check headers", fmt.Errorf("%s is there twice", name))
		case name == "content-type" && in.Method != "POST":
			return usage("invalid_input", "check headers", errors.New("content-type is of a POST's body"))
		}
		seen = append(seen, name)
	}
	seen = nil
	for _, b := range in.CredentialBindings {
		c, err := ParseFetchCredential(b)
		switch {
		case err != nil:
			return err
		case slices.Contains(seen, c.Header):
			return usage("invalid_input", "check credential_bindings", fmt.Errorf("%s is there twice", c.Header))
		case !strings.HasPrefix(strings.ToLower(in.URL), "https://"):
			return usage("invalid_input", "check credential_bindings", errors.New("secrets go out over https alone"))
		}
		seen = append(seen, c.Header)
	}
	for _, t := range in.AllowedContentTypes {
		main, sub, ok := strings.Cut(t, "/")
		if !ok || !token(main) || sub != "*" && !token(sub) || strings.ToLower(t) != t || strings.Contains(main, "*") {
			return usage("invalid_input", "check allowed_content_types", errors.New("want TYPE/SUBTYPE or TYPE/*, in lower case and without parameters"))
		}
	}
	return nil
}

// FetchHeader reads one of an input's headers: its name in lower case, and its value.
func FetchHeader(text string) (name, value string, err error) {
	const op = "check headers"
	name, value, ok := strings.Cut(text, ":")
	name, value = strings.ToLower(name), strings.Trim(value, " ")
	switch {
	case !ok || !token(name):
		return "", "", usage("invalid_input", op, errors.New("want NAME: VALUE"))
	case credential(name):
		return "", "", usage("invalid_input", op, fmt.Errorf("%s holds credentials: credential_bindings names a secret for it, and no input of this tool has the value", name))
	case !slices.Contains(fetchHeaders, name):
		return "", "", usage("invalid_input", op, fmt.Errorf("%q isn't one of %s", name, strings.Join(fetchHeaders, ", ")))
	}
	for _, c := range []byte(value) {
		if c < ' ' || c > '~' {
			return "", "", usage("invalid_input", op, fmt.Errorf("the value of %s has a byte that isn't printable ASCII", name))
		}
	}
	return name, value, nil
}

// FetchCredential is one of an input's credential bindings.
type FetchCredential struct {
	Header string // in lower case
	Scheme string // before the secret, "" for none
	Ref    string // "vault://global/api"
}

// ParseFetchCredential reads HEADER: [SCHEME ]REF. Of the reference it checks the beginning alone.
func ParseFetchCredential(text string) (FetchCredential, error) {
	const op = "check credential_bindings"
	header, value, ok := strings.Cut(text, ":")
	words := strings.Fields(value)
	c := FetchCredential{Header: strings.ToLower(header)}
	if len(words) == 2 {
		c.Scheme, words = words[0], words[1:]
	}
	switch {
	case !ok || !token(header) || len(words) != 1 || !strings.HasPrefix(words[0], "vault://"):
		return FetchCredential{}, usage("invalid_input", op, errors.New("want HEADER: [SCHEME ]vault://SCOPE/KEY"))
	case c.Scheme != "" && !token(c.Scheme):
		return FetchCredential{}, usage("invalid_input", op, errors.New("a scheme is a word"))
	case strings.EqualFold(c.Scheme, "basic"):
		return FetchCredential{}, usage("invalid_input", op, errors.New("user and password of Basic are encoded together, which this tool doesn't do"))
	case slices.Contains(fetchHeaders, c.Header):
		return FetchCredential{}, usage("invalid_input", op, fmt.Errorf("%s holds no credentials", c.Header))
	}
	c.Ref = words[0]
	return c, nil
}

// FetchVariable is the variable that holds the placeholder of the n-th credential binding, from 0.
func FetchVariable(n int) string { return "CREDENTIAL_" + strconv.Itoa(n+1) }

// credential reports whether a header is one of those that carry credentials by custom. They'd be
// refused anyway; the caller is told why.
func credential(name string) bool {
	return strings.Contains(name, "authorization") || strings.HasPrefix(name, "x-") || strings.HasPrefix(name, "cookie") ||
		strings.HasSuffix(name, "-token") || strings.HasSuffix(name, "-key") || strings.HasSuffix(name, "-secret")
}

// token reports whether s is a token (RFC 9110 §5.6.2).
func token(s string) bool {
	return s != "" && strings.IndexFunc(s, func(c rune) bool {
		return c >= 0x80 || !strings.ContainsRune("!#$%&'*+-.^_`|~", c) && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z')
	}) < 0
}

// Takes reports whether an answer of this type, in lower case and without parameters, is taken.
func (in *FetchInput) Takes(typ string) bool {
	main, _, _ := strings.Cut(typ, "/")
	allowed := in.AllowedContentTypes
	if len(allowed) == 0 {
		allowed = fetchTypes
	}
	return slices.Contains(allowed, typ) || slices.Contains(allowed, main+"/*")
}

// Brief says what is asked, and what is sent with it.
func (in *FetchInput) Brief() []string {
	out := []string{"method=" + in.Method, "url=" + in.URL}
	for _, h := range in.Headers {
		out = append(out, "headers="+h)
	}
	for _, b := range in.CredentialBindings {
		out = append(out, "credential_bindings="+b)
	}
	if in.Method == "POST" {
		b, err := in.Bytes()
		if err != nil {
			return nil // Check has refused it
		}
		out = append(out, "size="+strconv.Itoa(len(b)), "digest="+canon.Sum(b).String())
	}
	return out
}

// FetchResult is the result of http.fetch. All but Method and Truncated is the server's word.
type FetchResult struct {
	URL         string `json:"url"`    // of the answer
	Method      string `json:"method"` // that the server was asked with in the end
	Status      int64  `json:"status"`
	ContentType string `json:"content_type"` // as the server spells it
	// Headers are those of the answer that say what it is and how long it's good, names in lower case.
	Headers   map[string]string `json:"headers"`
	Content   Content           `json:"content"`
	Length    int64             `json:"length"` // of the content, in bytes
	Truncated bool              `json:"truncated"`
	Redirects []FetchRedirect   `json:"redirects"` // that were followed
}

// FetchRedirect is an answer that led elsewhere.
type FetchRedirect struct {
	Status int64  `json:"status"`
	URL    string `json:"url"` // where it led
}
