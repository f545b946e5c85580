package signal

import (
	"slices"
	"strings"
	"sync"
)

// MaxOrders is how many signs Orders looks for in a text, of a code at most a quarter.
const MaxOrders = 64

// Orders returns the signs of instructions to a model and of hidden text, in order. The text is
// looked at as it reads: in one case, without accents and what isn't seen, lookalikes as the
// letters that they're like, entities of HTML and escapes of strings as what they stand for; and
// what is hidden, or one level of base64, as what it says.
func Orders(text string) (found []Finding) {
	count := make(map[string]int)
	add := func(code, severity string, from, to int) {
		if len(found) < MaxOrders && count[code] < MaxOrders/4 {
			count[code]++
			found = append(found, Finding{code, severity, from, to})
		}
	}
	r := read(text)
	for i := range r.unseen {
		u := &r.unseen[i]
		if !r.harmless(u) {
			add(Hidden+"."+u.code, u.severity, u.from, u.to)
		}
		if len(u.says.b) >= minSaid { // whatever it orders, no person was to read it
			orders(&u.says, func(code, severity string, _, _ int) { add(code, Critical, u.from, u.to) })
		}
	}
	orders(&r.seen, func(code, severity string, from, to int) {
		add(code, severity, r.seen.from(from, len(text)), r.seen.from(to-1, len(text)-1)+1)
	})
	encoded(text, func(says string, from, to int) {
		in := read(says)
		orders(&in.seen, func(code, severity string, _, _ int) { add(code, severity, from, to) })
	})
	byPlace(found)
	return slices.Compact(found)
}

// Hides reports whether a person who reads a text doesn't see all of it: it turns the direction of
// writing, or has tags, selectors of variants in a row, or minRow characters of any kind in a row
// that aren't seen. It keeps nothing of the text.
func Hides(text string) bool {
	row, last := 0, ""
	for len(text) > 0 {
		says, n := next(text)
		text = text[n:]
		for _, x := range says {
			code, severity := unseenAs(x)
			if code == "" {
				row, last = 0, ""
				continue
			}
			row++
			one := code == "selectors" && last != code // as emoji have it
			if row >= minRow || severity == High && !one {
				return true
			}
			last = code
		}
	}
	return false
}

const (
	minSaid = 8
	minRow  = 4 // pages often have fewer
)

// harmless reports whether unseen characters have a use where they stand: in emoji, in scripts that
// need them, as the mark at the beginning of a file.
func (r *reader) harmless(u *unseen) bool {
	switch u.code {
	case "selectors":
		return u.n == 1
	case "zero_width":
		if u.from == 0 && strings.HasPrefix(r.text, "\ufeff") && u.n == 1 || r.rtl && u.n == 1 {
			return true
		}
		// A joiner stands between emoji.
		between := func(s string) bool { return s != "" && s[0] >= 0xe2 || strings.HasPrefix(s, "\u200d") }
		return u.n == 1 && r.text[u.from:u.to] == "\u200d" && u.from >= 3 && r.text[u.from-1] >= 0x80 && between(r.text[u.to:])
	}
	return false
}

// sentence is a form of words: each element is some words, one of which stands there. "*" stands
// for up to four words, whatever they are.
type sentence struct {
	code, severity string
	words          [][]string
}

// skipped is how many words a "*" stands for at most.
const skipped = 4

const (
	past    = "previous|prior|earlier|above|preceding|former|foregoing|past|existing|initial|original"
	rules   = "instruction|instructions|direction|directions|directive|directives|rules|prompt|prompts|command|commands|guidelines|orders|guidance|context"
	secrets = "secret|secrets|credential|credentials|password|passwords|key|keys|token|tokens"
	take    = "exfiltrate|upload|send|post|email|mail|forward|transmit|leak|steal|submit"
	show    = "reveal|print|show|display|output|repeat|dump|disclose|expose|tell|give|list|echo"
)

// sentences has the rows by their first words. It's made when it's wanted: most processes don't.
var sentences = sync.OnceValue(func() map[string][]*sentence { return parse(rows) })

// rows are how the original's nineteen phrases and others like them are said. Their codes are the
// original's.
var rows = [][3]string{
	{"ignore_all_previous_instructions", High, "ignore|disregard|forget|skip all|any|every * " + past + " * " + rules},
	{"ignore_previous_instructions", High, "ignore|forget|skip|neglect * " + past + " * " + rules},
	{"ignore_previous_instructions", High, "ignore|forget everything|anything|all|what * before|above|said|told|previously"},
	{"ignore_previous_instructions", High, "ignore|forget|disregard your|system|developer * " + rules},
	{"ignore_previous_instructions", High, "ignore|forget|disregard all|any|these|those instructions|directions|directives|guidelines"},
	{"ignore_previous_instructions", High, "ignorier|ignoriere|ignorieren|vergiss|vergesst|missachte * vorherigen|bisherigen|obigen|fruheren|vorigen|vorangegangenen * anweisungen|anweisung|instruktionen|befehle|regeln"},
	{"ignore_previous_instructions", High, "ignore|ignorez|oublie|oubliez * instructions|consignes|directives|regles * precedentes|anterieures|ci"},
	{"ignore_previous_instructions", High, "ignora|ignore|ignorar|ignoren|olvida|olvide * instrucciones|indicaciones|reglas|ordenes * anteriores|previas|previos"},
	{"ignore_previous_instructions", High, "ignora|ignorare|dimentica * istruzioni|regole|indicazioni * precedenti|anteriori"},
	{"ignore_previous_instructions", High, "ignora|ignore|ignorar|esqueca * instrucoes|regras|ordens * anteriores|previas"},
	{"disregard_earlier_directions", High, "disregard * " + past + " * " + rules},
	{"disregard_earlier_directions", High, "not|don't follow|obey|heed * " + past + "|system|developer * " + rules},
	{"override_assistant", High, "override|overrule|overwrite * assistant|model|agent|ai * " + "behavior|behaviour|settings|" + rules},
	{"override_assistant", High, "override|overrule|overwrite your|system * " + rules},
	{"role_reassignment", Warning, "you are now|henceforth a|an|the|my|in|dan|not|no|going|free|unrestricted"},
	{"role_reassignment", Warning, "from now on you|your"},
	{"role_reassignment", Warning, "act|behave|pretend as|to * unrestricted|uncensored|jailbroken|root|administrator|developer|system|dan"},
	{"new_instructions_marker", Warning, "new|updated|revised|important|additional|urgent|real|actual instruction|instructions|task|orders|directive|directives"},
	{"new_instructions_marker", Warning, "before you can|solve|continue|do|finish|complete * task|must|need|please"},
	{"new_instructions_marker", Warning, "attention|note|message|instructions for|to|from * ai|llm|assistant|assistants|agents|chatbot|copilot|claude|chatgpt|gpt"},
	{"system_prompt_reference", Warning, "system prompt|prompts|instructions"},
	{"developer_instructions_reference", Warning, "developer instructions|prompt|message|mode"},
	{"hidden_prompt_reference", Warning, "hidden|secret|initial|internal prompt|prompts|instructions"},
	{"bypass_policy", Warning, "bypass|circumvent|evade|violate|avoid * policy|policies|approval|approvals|sandbox|confirmation|permissions|restrictions|gate"},
	{"bypass_policy", Warning, "without asking|telling|informing|notifying|alerting|mentioning * user|users|person|human|anyone|operator|it"},
	{"bypass_policy", Warning, "not|don't|never tell|inform|mention|notify|alert|ask * user|users|person|human|operator"},
	{"bypass_policy", Warning, "approve|confirm it|this|that|them yourself"},
	{"disable_guardrails", Warning, "disable|deactivate|remove|lift * guardrail|guardrails|safety|safeguards|filters|restrictions|moderation|protections"},
	{"reveal_system_prompt", Critical, show + " * system|hidden|initial|secret|internal prompt|prompts|instructions|message"},
	{"show_developer_message", Critical, show + " * developer message|messages|prompt|instructions"},
	{"exfiltrate_secrets", Critical, take + " * " + secrets + "|env|environ|environment * to|at|via|using|with"},
	{"exfiltrate_secrets", Critical, "exfiltrate * " + secrets + "|data|files|notes|code|everything"},
	{"print_secret", Critical, "print|show|reveal|dump|echo|disclose|expose * api|secret|private|access|env|environment * " + secrets + "|variables|values"},
	{"leak_token", Critical, "leak|steal|exfiltrate|harvest * token|tokens|key|keys|password|passwords"},
	{"steal_cookie", Critical, "steal|exfiltrate|harvest|send|grab * cookie|cookies"},
}

// marks are what a text has that would pass for the frame around it.
var marks = []struct{ text, code, severity string }{
	{"<system>", "system_tag_spoof", High}, {"</system>", "system_tag_spoof", High}, {"<|im_start|>", "system_tag_spoof", High}, {"<|im_end|>", "system_tag_spoof", High},
	{"<|system|>", "system_tag_spoof", High}, {"<|start_header_id|>", "system_tag_spoof", High}, {"<|endoftext|>", "system_tag_spoof", High}, {"[inst]", "system_tag_spoof", High},
	{"[/inst]", "system_tag_spoof", High}, {"<<sys>>", "system_tag_spoof", High}, {"<system-reminder>", "system_tag_spoof", High}, {"</tool_result>", "system_tag_spoof", High},
	{"<|start|>", "system_tag_spoof", High}, {"<assistant>", "system_tag_spoof", High}, {"<developer>", "system_tag_spoof", High}, {"<information>", "system_tag_spoof", High},
	{"<important>", "system_tag_spoof", High},
	{"[external content]", "external_content_marker_spoof", Warning}, {"<external_content", "external_content_marker_spoof", Warning},
	{"[end external content]", "external_content_end_marker_spoof", Warning}, {"</external_content", "external_content_end_marker_spoof", Warning},
	{"<untrusted_content", "untrusted_content_marker_spoof", Warning}, {"</untrusted_content", "untrusted_content_marker_spoof", Warning},
	{"⟦secret:", "pseudonym_spoof", Warning}, {"palyra: this text", "palyra_mark_spoof", Warning},
}

// labels begin lines that would pass for another's turn.
var labels = []string{"system:", "developer:", "assistant:", "system message:", "### system:", "### instruction:", "### instructions:", "# system:"}

func parse(rows [][3]string) map[string][]*sentence {
	byFirst := make(map[string][]*sentence)
	for _, row := range rows {
		s := &sentence{code: Injection + "." + row[0], severity: row[1]}
		for _, w := range strings.Fields(row[2]) {
			s.words = append(s.words, strings.Split(w, "|"))
		}
		for _, w := range s.words[0] {
			byFirst[w] = append(byFirst[w], s)
		}
	}
	return byFirst
}

// orders calls f for each sentence, mark and label in a folded text, with the bytes of that.
func orders(t *folded, f func(code, severity string, from, to int)) {
	text, known := string(t.b), sentences()
	run, single := 0, word{} // of letters that stand alone: how many, and the first
	for w := (word{}); ; {
		was := w
		var ok bool
		if w, ok = after(text, w.to); !ok {
			break
		}
		for _, s := range known[text[w.from:w.to]] {
			if to := s.fits(w, func(w word) (string, word, bool) {
				n, ok := after(text, w.to)
				return text[n.from:n.to], n, ok
			}); to > 0 {
				f(s.code, s.severity, w.from, to)
			}
		}
		switch {
		case w.to-w.from > 1:
			spaced(text, single, run, f)
			run = 0
		case run == 0 || w.from-was.to > maxApart:
			spaced(text, single, run, f)
			run, single = 1, w
		default:
			run++
		}
	}
	spaced(text, single, run, f)
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '<' || c == '[' || c == 'p' || c == front[0]:
			for _, m := range marks {
				if m.text[0] == c && strings.HasPrefix(text[i:], m.text) {
					f(Injection+"."+m.code, m.severity, i, i+len(m.text))
				}
			}
		case c != 's' && c != 'd' && c != 'a' && c != '#':
			continue
		}
		if i == 0 || text[i-1] == '\n' || text[i-1] == ' ' && i > 1 && strings.IndexByte(".!?\"'\n ", text[i-2]) >= 0 || text[i-1] == '"' {
			for _, l := range labels {
				if text[i] == l[0] && strings.HasPrefix(text[i:], l) {
					f(Injection+".system_label_spoof", Warning, i, i+len(l))
				}
			}
		}
	}
}

// word is where a word stands.
type word struct{ from, to int }

// after returns the first word from byte i of a folded text.
func after(text string, i int) (word, bool) {
	for i < len(text) && !letters[text[i]] {
		i++
	}
	j := i
	for j < len(text) && (letters[text[j]] || text[j] == '\'' && strings.HasPrefix(text[j:], "'t")) {
		j++
	}
	return word{i, j}, j > i
}

// letters are the bytes of words.
var letters = func() (t [256]bool) {
	for c := range t {
		t[c] = isLower(byte(c)) || isDigit(byte(c)) || c >= 0x80
	}
	return t
}()

// The bounds of a text that is s p a c e d.
const (
	minSpaced = 12 // letters that stand alone
	maxApart  = 4  // bytes between two of these
)

// spaced looks for sentences in a run of n letters that stand alone, w being the first. Their words
// are found by their letters.
func spaced(text string, w word, n int, f func(code, severity string, from, to int)) {
	if n < minSpaced {
		return
	}
	run, at := make([]byte, n), make([]int, n)
	for i := range n {
		run[i], at[i] = text[w.from], w.from
		w, _ = after(text, w.to)
	}
	words := known(string(run))
	for i, w := range words {
		for _, s := range sentences()[string(run[w.from:w.to])] {
			if to := s.fits(word{i, i + 1}, func(w word) (string, word, bool) {
				if w.to >= len(words) {
					return "", w, false
				}
				n := words[w.to]
				return string(run[n.from:n.to]), word{w.to, w.to + 1}, true
			}); to > 0 {
				f(s.code, s.severity, at[w.from], at[words[to-1].to-1]+1)
			}
		}
	}
}

// vocabulary has the words of sentences.
var vocabulary = sync.OnceValue(func() map[string]bool {
	t := make(map[string]bool)
	for _, all := range sentences() {
		for _, s := range all {
			for _, some := range s.words {
				for _, w := range some {
					t[w] = true
				}
			}
		}
	}
	return t
})

// known splits a run of letters into words of sentences, the longest first, and others.
func known(run string) (words []word) {
	const longest = 16
	all := vocabulary()
	from := 0
	for i := 0; i < len(run); {
		n := min(longest, len(run)-i)
		for n > 2 && !all[run[i:i+n]] {
			n--
		}
		if n <= 2 {
			i++
			continue
		}
		if from < i {
			words = append(words, word{from, i})
		}
		words = append(words, word{i, i + n})
		i += n
		from = i
	}
	if from < len(run) {
		words = append(words, word{from, len(run)})
	}
	return words
}

// fits returns the end of the sentence that begins with a word, 0 if none does. next returns the
// word behind another.
func (s *sentence) fits(w word, next func(w word) (string, word, bool)) (end int) {
	for n, want := range s.words[1:] {
		if want[0] == "*" {
			continue
		}
		room := 0
		if s.words[n][0] == "*" {
			room = skipped
		}
		for {
			text, at, ok := next(w)
			if !ok {
				return 0
			}
			w = at
			if slices.Contains(want, text) {
				break
			}
			if room == 0 {
				return 0
			}
			room--
		}
	}
	return w.to
}
