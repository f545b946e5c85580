package toolproto

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"palyra/internal/canon"
)

// The names of the tools for memory. The payload behind each input is the result, which palyrad has
// made: a cell can't ask palyrad.
const (
	MemorySearch = "memory.search"
	MemoryList   = "memory.list"
	MemoryRetain = "memory.retain"
	MemoryForget = "memory.forget"
)

// Bounds of items of memory.
const (
	MaxMemory      = 16 << 10 // bytes of an item's text
	MaxMemoryBatch = 64       // items that one call stores
	MaxMemoryFound = 64       // items that one search gives
	MaxMemoryTags  = 16       // of an item
	MaxMemoryTag   = 64       // characters of a tag
)

// The sources of items: who wrote one.
const (
	SourcePerson = "person" // a person, by a command
	SourceImport = "import" // a person, by a file
	SourceAgent  = "agent"  // whoever called memory.retain
)

// Sources returns the sources of items.
func Sources() []string { return []string{SourcePerson, SourceImport, SourceAgent} }

// MemorySearchInput is the input of memory.search.
type MemorySearchInput struct {
	Query string `json:"query,omitempty" tool:"max=4096" doc:"what to look for, in plain words"`
	Limit int64  `json:"limit" tool:"default=8,min=1,max=64" doc:"how many items to return at most"`
	// Recall says that an agent's run begins with it. It finds what persons wrote alone.
	Recall bool `json:"recall,omitempty" doc:"find only what a person wrote or imported, and only what fits well"`
	// Found and Origins are set by the kernel: how many items the payload has, and what they were
	// made of.
	Found   int64    `json:"found" tool:"hidden,min=0,max=64"`
	Origins []string `json:"origins,omitempty" tool:"hidden,max=16,maxlen=32"`
}

// Brief says how much is found, and what it was made of. The query isn't in it: it stays out of
// receipts.
func (in *MemorySearchInput) Brief() []string {
	b := []string{"found=" + strconv.FormatInt(in.Found, 10), "origins=" + strings.Join(in.Origins, ",")}
	if in.Recall {
		b = append(b, "recall")
	}
	return b
}

// MemoryListInput is the input of memory.list.
type MemoryListInput struct {
	IDs    []string `json:"ids,omitempty" tool:"max=64,maxlen=36" doc:"only these: mem_…"`
	Before int64    `json:"before,omitempty" tool:"min=0,max=9223372036854775807" doc:"only those that were made before the item of this number (next of the page before)"`
	Limit  int64    `json:"limit" tool:"default=32,min=1,max=256" doc:"how many items to return at most"`

	Found   int64    `json:"found" tool:"hidden,min=0,max=256"` // set by the kernel, as in MemorySearchInput
	Origins []string `json:"origins,omitempty" tool:"hidden,max=16,maxlen=32"`
}

// Brief says how much is listed, and what it was made of.
func (in *MemoryListInput) Brief() []string {
	return []string{"found=" + strconv.FormatInt(in.Found, 10), "origins=" + strings.Join(in.Origins, ",")}
}

// MemoryRetainInput is the input of memory.retain.
type MemoryRetainInput struct {
	Text       string   `json:"text,omitempty" tool:"max=16384" doc:"what to remember, at most 16 KiB: whole sentences that can be understood alone"`
	Tags       []string `json:"tags,omitempty" tool:"max=16,maxlen=64" doc:"words to find it by"`
	Scope      string   `json:"scope" tool:"default=principal,enum=principal|session" doc:"principal: each later session of the same user finds it; session: this one alone, and it goes with it"`
	Confidence int64    `json:"confidence" tool:"default=50,min=0,max=100" doc:"how sure you are, in per cent"`
	Days       int64    `json:"days,omitempty" tool:"min=0,max=3650" doc:"forget it after so many days; default: the configuration's"`

	// The rest is set by the kernel.
	Source  string   `json:"source" tool:"hidden,max=16"`
	Items   int64    `json:"items" tool:"hidden,min=0,max=64"`
	Origins []string `json:"origins,omitempty" tool:"hidden,max=16,maxlen=32"` // of what the items were made of
	Record  string   `json:"record" tool:"hidden,max=71"`                      // digest of the sealed items
}

// Check checks what the bounds of single members do not.
func (in *MemoryRetainInput) Check() error {
	if len(in.Text) > MaxMemory {
		return usage("too_large", "read member text", errors.New("more than 16384 bytes"))
	}
	for _, t := range in.Tags {
		if err := CheckTag(t); err != nil {
			return err
		}
	}
	return nil
}

// CheckTag returns nil if a tag is one: without spaces and control characters.
func CheckTag(tag string) error {
	if tag == "" || utf8.RuneCountInString(tag) > MaxMemoryTag || strings.ContainsFunc(tag, func(r rune) bool { return r <= ' ' || r == 0x7f || r == utf8.RuneError }) {
		return usage("invalid_input", "read member tags", errors.New("want 1 to 64 characters without spaces"))
	}
	return nil
}

// Brief says what is stored, and what it was made of. What it says stays out of it.
func (in *MemoryRetainInput) Brief() []string {
	return []string{"source=" + in.Source, "scope=" + in.Scope, "items=" + strconv.FormatInt(in.Items, 10), "origins=" + strings.Join(in.Origins, ","), "record=" + in.Record}
}

// MemoryForgetInput is the input of memory.forget.
type MemoryForgetInput struct {
	IDs []string `json:"ids,omitempty" tool:"max=64,maxlen=36" doc:"of the items: mem_…"`
	// The others choose many items, and are the principal's own commands' alone.
	Origin  string `json:"origin,omitempty" tool:"hidden,max=16"`
	Session string `json:"session,omitempty" tool:"hidden,max=64"`
	All     bool   `json:"all,omitempty" tool:"hidden"`

	Items int64  `json:"items" tool:"hidden,min=0,max=9007199254740992"` // set by the kernel: how many there are
	Set   string `json:"set" tool:"hidden,max=71"`                       // and which: the digest of their sorted ids
}

// Brief says what is forgotten.
func (in *MemoryForgetInput) Brief() []string {
	b := []string{"items=" + strconv.FormatInt(in.Items, 10), "set=" + in.Set}
	for _, m := range []struct{ name, value string }{{"origin", in.Origin}, {"session", in.Session}} {
		if m.value != "" {
			b = append(b, m.name+"="+m.value)
		}
	}
	if in.All {
		b = append(b, "all")
	}
	return b
}

// MemorySet returns the digest of a set of items: of their ids, sorted, a line each.
func MemorySet(ids []string) canon.Digest {
	ids = slices.Sorted(slices.Values(ids))
	return canon.Sum([]byte(strings.Join(ids, "\n") + "\n"))
}

// Memory is an item.
type Memory struct {
	ID         string       `json:"id"`
	Scope      string       `json:"scope"`
	Session    string       `json:"session,omitempty"` // that it was made in, where one is known
	Source     string       `json:"source"`
	Origins    []string     `json:"origins"` // of what it was made of
	Tags       []string     `json:"tags"`
	Confidence int64        `json:"confidence"` // per cent
	Created    time.Time    `json:"created"`
	Expires    *time.Time   `json:"expires,omitempty"`
	Digest     canon.Digest `json:"digest"` // of the sealed item
	Text       string       `json:"text"`
	Score      *MemoryScore `json:"score,omitempty"` // of a search
}

// MemoryScore says why an item was found, in thousandths. Total is the sum of the rest.
type MemoryScore struct {
	Total   int64 `json:"total"`
	Lexical int64 `json:"lexical"` // words in common, of 490
	Vector  int64 `json:"vector"`  // likeness of vectors, of 320
	Recency int64 `json:"recency"` // of 70
	Quality int64 `json:"quality"` // who wrote it, and how sure of it, of 120
	// Embedding says of which vectors, where a provider's are configured: the model's, or
	// hash-embedding-v1 and why.
	Embedding string `json:"embedding,omitempty"`
}

// MemoryResult is the result of each. Items are in an agent's answers alone; a command's come to
// palyrad's client beside the program.
type MemoryResult struct {
	Items []Memory `json:"items"`
	Count int64    `json:"count"`          // of items found, stored or forgotten
	Next  int64    `json:"next,omitempty"` // of memory.list: before of the next page
}
