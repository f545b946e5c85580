package memory

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strings"
	"time"

	"palyra/agentloop/provider/wordhash"
	"palyra/crypt/seal"
	"palyra/hub/store"
	"palyra/internal/fault"
	"palyra/internal/toolproto"
)

// book is the index over one principal's items. It's owned by the holder of their turn.
type book struct {
	after int64 // the N of the last row in it
	docs  []doc
	words map[string][]posting
	total int64 // words of all docs
	gone  int   // docs that the store has no more
	bytes int64 // about what it takes
	used  int64 // when, on Memory.clock; guarded by Memory.mu

	score []float64 // of each doc, 0 between searches
}

// doc is an item in a book.
type doc struct {
	id         string
	session    string // "": it answers in each
	source     string
	created    int64 // unix seconds
	expires    int64 // 0: never
	confidence int8
	gone       bool
	length     int32 // in words
	vector     vector
	near       *near // a provider's; nil: there is none
}

type posting struct{ doc, count uint32 }

// What the parts of a book take, in bytes.
const (
	docCost     = 240
	postingCost = 10 // slices grow ahead
	wordCost    = 80
	nearCost    = 96 // besides the numbers
)

func newBook() *book { return &book{words: make(map[string][]posting)} }

func (b *book) add(r *store.Memory, it *toolproto.Memory, v *near) {
	d := doc{id: r.ID, source: r.Source, created: r.Created.Unix(), confidence: int8(it.Confidence), near: v}
	if r.Scope == store.MemoryOfSession {
		d.session = r.Session
	}
	if !r.Expires.IsZero() {
		d.expires = r.Expires.Unix()
	}
	words := wordhash.Words(it.Text + " " + strings.Join(it.Tags, " "))
	d.length, d.vector = int32(len(words)), embed(words)
	n := uint32(len(b.docs))
	b.docs, b.total, b.after = append(b.docs, d), b.total+int64(len(words)), r.N
	b.bytes += docCost
	if v != nil {
		b.bytes += nearCost + int64(len(v.of))
	}
	fold(words)
	slices.Sort(words)
	for i := 0; i < len(words); {
		w, from := words[i], i
		for i < len(words) && words[i] == w {
			i++
		}
		list, ok := b.words[w]
		if !ok {
			w = strings.Clone(w) // not the whole text with it
			b.bytes += wordCost + int64(len(w))
		}
		b.words[w] = append(list, posting{n, uint32(i - from)})
		b.bytes += postingCost
	}
}

// The parts of a score, in thousandths, and BM25's usual parameters.
const (
	lexicalPart = 490
	vectorPart  = 320
	recencyPart = 70
	qualityPart = 120

	saturation = 1.2  // k1
	lengthNorm = 0.75 // b
)

const (
	maxRanked  = 1024  // candidates whose vectors are compared
	maxTerms   = 64    // words of a query that count
	maxIdeal   = 8     // words that a whole match has: a prompt has many that no item could
	manyItems  = 16384 // from which on common words find none by themselves:
	commonPart = 50    // those that a fiftieth of them has, and 2,048
	minAlike   = 0.25  // likeness of an item that has no word of the query
	minTerms   = 2     // words of a query that is compared by likeness alone
)

// quality is how good a source's word is.
var quality = map[string]float64{toolproto.SourcePerson: .94, toolproto.SourceImport: .84, toolproto.SourceAgent: .32}

// hit is a doc that was found.
type hit struct {
	doc     uint32
	lexical float64
	alike   float64 // by vectors
	near    bool    // which are a provider's
	score   toolproto.MemoryScore
}

// ask is a question to a book.
type ask struct {
	query, session string
	recall         bool // what persons wrote alone
	now            time.Time
	weights        [2]float64 // of lexical and vector: 1, but in tests
	embedded       *Embedded  // nil: no provider's vectors are configured
	near           *near      // the query's; nil: it has none
}

// search ranks the docs that answer, the best first, and at most most.
func (b *book) search(a ask, most int) []hit {
	hits := b.candidates(&a)
	for i := range hits {
		h, d := &hits[i], &b.docs[hits[i].doc]
		days := max(0, a.now.Sub(time.Unix(d.created, 0)).Hours()/24)
		part := func(most int64, x float64) int64 { return int64(math.Round(float64(most) * x)) }
		h.score = toolproto.MemoryScore{Lexical: part(lexicalPart, a.weights[0]*h.lexical), Vector: part(vectorPart, a.weights[1]*h.alike), Embedding: a.by(h),
			Recency: part(recencyPart, 1/(1+days)), Quality: part(qualityPart, (quality[d.source]+float64(d.confidence)/100)/2)}
		h.score.Total = h.score.Lexical + h.score.Vector + h.score.Recency + h.score.Quality
	}
	slices.SortFunc(hits, func(x, y hit) int {
		return cmp.Or(cmp.Compare(y.score.Total, x.score.Total), cmp.Compare(y.lexical, x.lexical), cmp.Compare(b.docs[x.doc].id, b.docs[y.doc].id))
	})
	return hits[:min(most, len(hits))]
}

// candidates returns docs that have words of the query, those first that fit best, and as far as
// there is room the newest that are like it, by vectors.
func (b *book) candidates(a *ask) []hit {
	all := wordhash.Words(a.query)
	query := embed(all)
	terms := slices.Clone(all)
	if a.recall { // a prompt is a sentence, and an item is told for what it's about
		terms = telling(all)
	}
	fold(terms)
	slices.Sort(terms)
	if terms = slices.Compact(terms); len(terms) > maxTerms {
		terms = terms[:maxTerms]
	}
	if len(b.score) < len(b.docs) {
		b.score = make([]float64, len(b.docs)+len(b.docs)/4)
	}
	n := float64(len(b.docs) - b.gone)
	found := make([]term, 0, len(terms))
	for _, t := range terms {
		list := b.words[t]
		in := float64(max(1, len(list))) // a word that no item has is as rare as one that one has
		found = append(found, term{list, math.Log(1 + math.Max(0, n-in+.5)/(in+.5))})
	}
	slices.SortStableFunc(found, func(x, y term) int { return cmp.Compare(len(x.list), len(y.list)) })
	var whole float64
	for _, t := range found[:min(maxIdeal, len(found))] { // the rarest
		whole += t.rare
	}
	// A word that is common among many items finds none that the others don't, and counts in the best
	// of these.
	common := len(found)
	var touched []uint32
	for i, t := range found {
		if len(t.list) > manyItems/8 && len(t.list) > len(b.docs)/commonPart && len(touched) >= toolproto.MaxMemoryFound {
			common = i
			break
		}
		for _, p := range t.list {
			if b.score[p.doc] == 0 {
				touched = append(touched, p.doc)
			}
			b.score[p.doc] += b.weight(p, t.rare)
		}
	}
	best := make(heap, 0, maxRanked)
	for _, d := range touched {
		if x := b.score[d]; x > 0 && b.answers(d, a) {
			best.offer(hit{doc: d, lexical: x}, maxRanked)
		}
		b.score[d] = 0
	}
	for i := range best {
		h := &best[i]
		for _, t := range found[common:] {
			if at, ok := slices.BinarySearchFunc(t.list, h.doc, func(p posting, doc uint32) int { return cmp.Compare(p.doc, doc) }); ok {
				h.lexical += b.weight(t.list[at], t.rare)
			}
		}
		whole = math.Max(whole, h.lexical)
	}
	for i := range best {
		best[i].lexical /= whole
	}
	out := []hit(best)
	if len(terms) < minTerms && a.near == nil || len(out) == maxRanked {
		b.compare(a, query, out)
		return out
	}
	seen := make(map[uint32]bool, len(out))
	for i := range out {
		seen[out[i].doc] = true
	}
	var rest []hit
	for d := len(b.docs) - 1; d >= 0 && len(out)+len(rest) < maxRanked; d-- {
		if !seen[uint32(d)] && b.answers(uint32(d), a) {
			rest = append(rest, hit{doc: uint32(d)})
		}
	}
	b.compare(a, query, out, rest)
	return append(out, slices.DeleteFunc(rest, func(h hit) bool { return h.alike < minAlike })...)
}

// term is a word of a query, and how rare it is.
type term struct {
	list []posting
	rare float64
}

// weight is what a word adds to a doc.
func (b *book) weight(p posting, rare float64) float64 {
	c, mean := float64(p.count), float64(b.total)/float64(len(b.docs))
	return rare * c * (saturation + 1) / (c + saturation*(1-lengthNorm+lengthNorm*float64(b.docs[p.doc].length)/mean))
}

// answers reports whether a doc answers a question.
func (b *book) answers(n uint32, a *ask) bool {
	d := &b.docs[n]
	return !d.gone && (d.expires == 0 || a.now.Unix() < d.expires) && (d.session == "" || d.session == a.session) &&
		(!a.recall || d.source == toolproto.SourcePerson || d.source == toolproto.SourceImport)
}

// heap has the best hits, the worst of them first.
type heap []hit

func (h heap) less(i, j int) bool {
	return cmp.Or(cmp.Compare(h[i].lexical, h[j].lexical), cmp.Compare(h[j].doc, h[i].doc)) < 0
}

func (h *heap) offer(x hit, most int) {
	s := *h
	if len(s) == most {
		if x.lexical <= s[0].lexical {
			return
		}
		s[0] = x
		for i := 0; ; {
			c := 2*i + 1
			if c >= len(s) {
				return
			}
			if c+1 < len(s) && s.less(c+1, c) {
				c++
			}
			if !s.less(c, i) {
				return
			}
			s[i], s[c] = s[c], s[i]
			i = c
		}
	}
	s = append(s, x)
	for i := len(s) - 1; i > 0; {
		up := (i - 1) / 2
		if !s.less(i, up) {
			break
		}
		s[i], s[up] = s[up], s[i]
		i = up
	}
	*h = s
}

// turn waits until no other goroutine uses a principal's book, and gives it.
func (m *Memory) turn(ctx context.Context, who string) (b *book, over func(), err error) {
	m.mu.Lock()
	t := m.turns[who]
	if t == nil {
		t = make(chan struct{}, 1)
		t <- struct{}{}
		m.turns[who] = t
	}
	m.mu.Unlock()
	select {
	case <-t:
	case <-ctx.Done():
		return nil, nil, fault.New(fault.Canceled, "canceled", "search memory", context.Cause(ctx))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if b = m.books[who]; b == nil || b.gone > len(b.docs)/2 {
		b = newBook()
		m.books[who] = b
	}
	return b, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.clock++
		b.used = m.clock
		m.evictLocked(b)
		t <- struct{}{}
	}, nil
}

// evictLocked drops books but keep until the others have room.
func (m *Memory) evictLocked(keep *book) {
	for {
		total, last := int64(0), ""
		for who, b := range m.books {
			total += b.bytes
			if b != keep && (last == "" || b.used < m.books[last].used) {
				last = who
			}
		}
		if total <= m.cfg.Index || last == "" {
			return
		}
		delete(m.books, last)
	}
}

// readRows is how many rows are read at once: a reader of the store isn't kept longer.
const readRows = 512

// catchUp reads the rows that a book doesn't have.
func (m *Memory) catchUp(ctx context.Context, k *seal.Key, who string, b *book) error {
	for {
		var rows []*store.Memory
		if _, err := store.View(ctx, m.cfg.Store, func(tx *store.Tx) (any, error) {
			return nil, tx.Memories(who, b.after, func(r *store.Memory) bool {
				rows = append(rows, r)
				return len(rows) < readRows
			})
		}); err != nil {
			return err
		}
		for _, r := range rows {
			it, v, err := opened(k, r)
			if err != nil {
				return err
			}
			b.add(r, &it, v)
		}
		if len(rows) < readRows {
			return nil
		}
	}
}

// recallScore is what an item that an agent's run begins with has at least, and recallMatch what of
// it comes from the words themselves.
const (
	recallScore = 200
	recallMatch = 150
)

// Search implements tool.Memory.
func (m *Memory) Search(ctx context.Context, who, session, query string, in *toolproto.MemorySearchInput) ([]toolproto.Memory, error) {
	k, err := m.reading(ctx)
	if err != nil || k == nil {
		return nil, err
	}
	b, over, err := m.turn(ctx, who)
	if err != nil {
		return nil, err
	}
	defer over()
	if err := m.catchUp(ctx, k, who, b); err != nil {
		return nil, err
	}
	a := ask{query: query, session: session, recall: in.Recall, now: time.Now(), weights: [2]float64{1, 1}, embedded: embedded(ctx)}
	a.near = a.embedded.of(0)
	var out []toolproto.Memory
	hits := b.search(a, maxRanked)
	if in.Recall {
		hits = slices.DeleteFunc(hits, func(h hit) bool { return h.score.Total < recallScore || h.score.Lexical+h.score.Vector < recallMatch })
	}
	_, err = store.View(ctx, m.cfg.Store, func(tx *store.Tx) (any, error) {
		for _, h := range hits {
			if int64(len(out)) == in.Limit {
				break
			}
			d := &b.docs[h.doc]
			r, err := tx.Memory(who, d.id)
			if fault.KindOf(err) == fault.NotFound { // it was removed since
				d.gone = true
				b.gone++
				continue
			}
			if err != nil {
				return nil, err
			}
			it, _, err := opened(k, r)
			if err != nil {
				return nil, err
			}
			it.Score = &h.score
			out = append(out, it)
		}
		return nil, nil
	})
	return out, err
}
