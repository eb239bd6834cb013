package mutations

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"

	"k8s.io/client-go/rest"
)

// recorded is a mutation and the answer of kube-apiserver, one line of the recorded file.
type recorded struct {
	mutation
	judgement
	// Stored changes the sent object to the stored one.
	Stored []edit `json:"stored,omitempty"`

	same bool // berth-control gave the same answer
}

// maxRecorded is the number of recorded answers.
const maxRecorded = 2000

//go:embed testdata
var testdata embed.FS

// recordedFile is the file with the recorded answers, below this package.
const recordedFile = "testdata/kube-apiserver.jsonl.gz"

// record writes answers of kube-apiserver to a file, those that berth-control gave too. Each combination of causes is
// there before others are repeated.
func (r *run) record(file string) error {
	slices.SortFunc(r.answers, compareMutations)
	var out []recorded
	seen, rounds := map[string]int{}, map[int][]recorded{}
	for _, a := range r.answers {
		if !a.same || a.excluded() {
			continue
		}
		key := a.Base + a.Verb + a.Reason
		for _, c := range a.Causes {
			key += " " + withoutIndexes(c)
		}
		rounds[seen[key]] = append(rounds[seen[key]], a)
		seen[key]++
	}
	for i := range len(rounds) {
		out = append(out, rounds[i][:min(len(rounds[i]), maxRecorded-len(out))]...)
	}
	slices.SortFunc(out, compareMutations)
	var text bytes.Buffer
	zip, err := gzip.NewWriterLevel(&text, gzip.BestCompression)
	if err != nil {
		return err
	}
	encoder := json.NewEncoder(zip)
	for _, a := range out {
		if err := encoder.Encode(a); err != nil {
			return err
		}
	}
	if err := zip.Close(); err != nil {
		return err
	}
	return os.WriteFile(file, text.Bytes(), 0o644)
}

// excluded reports whether the answer is not recorded: that of a panic, and one that depends on time, because a server
// writes the status of FlowSchemas meanwhile.
func (r *recorded) excluded() bool {
	return r.Code == http.StatusConflict || r.Reason == reasonAborted ||
		strings.HasPrefix(r.Base, "FlowSchema.") && r.Verb != create
}

// storedEdits returns the edits that change a sent object to the stored one.
func storedEdits(sent, stored map[string]any) (out []edit) {
	for _, c := range changes(nil, sent, stored) {
		if !c.have {
			out = append(out, edit{Path: c.path, Remove: true})
			continue
		}
		out = append(out, setField(c.path, c.now))
	}
	return out
}

// readRecorded reads the recorded answers.
func readRecorded() (out []recorded, err error) {
	text, err := testdata.ReadFile(recordedFile)
	if err != nil {
		return nil, err
	}
	zip, err := gzip.NewReader(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	lines := bufio.NewScanner(zip)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var r recorded
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, lines.Err()
}

// Replay sends the recorded mutations to a new server. It returns their number, and a description of each answer that
// differs from that of kube-apiserver.
func Replay(ctx context.Context, tested *rest.Config) (count int, different []string, err error) {
	all, err := bases()
	if err != nil {
		return 0, nil, err
	}
	answers, err := readRecorded()
	if err != nil {
		return 0, nil, err
	}
	s, err := open(ctx, tested, all)
	if err != nil {
		return 0, nil, err
	}
	byID := map[string]*base{}
	for _, b := range all {
		byID[b.id] = b
		if text := s.errs[b.id]; text != "" {
			different = append(different, b.id+" is rejected: "+text)
		}
	}
	results, work := make([]error, len(answers)), make(chan int)
	var workers sync.WaitGroup
	for range parallel {
		workers.Go(func() {
			for i := range work {
				results[i] = s.check(ctx, byID[answers[i].Base], &answers[i])
			}
		})
	}
	for i := range answers {
		work <- i
	}
	close(work)
	workers.Wait()
	for _, err := range results {
		if err != nil {
			different = append(different, err.Error())
		}
	}
	return len(answers), different, nil
}

// check sends a recorded mutation. It returns an error if the answer differs.
func (s *server) check(ctx context.Context, b *base, want *recorded) error {
	if b == nil {
		return fmt.Errorf("no base %s", want.Base)
	}
	got, ok, err := s.judge(ctx, b, &want.mutation)
	if err != nil {
		return fmt.Errorf("%s: %w", want.mutation, err)
	}
	if !ok {
		return fmt.Errorf("%s: not applicable to the stored object", want.mutation)
	}
	if want.Code < http.StatusBadRequest && got.sent != nil {
		if want.object, err = apply(got.sent, want.Stored); err != nil {
			return fmt.Errorf("%s: the stored object differs: %w", want.mutation, err)
		}
	}
	var errs []error
	for _, key := range compare(&want.judgement, got) {
		errs = append(errs, fmt.Errorf("%s: %s", key.path, key.text))
	}
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("%s\n%w", describe(&want.mutation, &want.judgement, got), errors.Join(errs...))
}
