package source

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
)

// watched is a running Directory with all Snapshots that it has emitted.
type watched struct {
	t    *testing.T
	dir  string
	stop func()

	mu   sync.Mutex
	list []Snapshot
	more chan struct{}
}

func watch(t *testing.T, o DirectoryOptions) *watched {
	t.Helper()
	o.NodeName = "node1"
	w := &watched{t: t, dir: o.Path, more: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- NewDirectory(o).Run(ctx, w.take) }()
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	t.Cleanup(w.stop)
	return w
}

func (w *watched) take(s Snapshot) {
	w.mu.Lock()
	w.list = append(w.list, s)
	w.mu.Unlock()
	select {
	case w.more <- struct{}{}:
	default:
	}
}

func (w *watched) all() []Snapshot {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.list)
}

// until waits for a matching Snapshot and returns it.
func (w *watched) until(what string, right func(Snapshot) bool) Snapshot {
	w.t.Helper()
	limit := time.After(time.Minute)
	for {
		if list := w.all(); len(list) > 0 && right(list[len(list)-1]) {
			return list[len(list)-1]
		}
		select {
		case <-w.more:
		case <-limit:
			w.t.Fatalf("%s: not within a minute; %d snapshots, the last:\n%s", what, len(w.all()), w.last())
		}
	}
}

func (w *watched) last() string {
	list := w.all()
	if len(list) == 0 {
		return "none"
	}
	return show(list[len(list)-1])
}

// show formats a Snapshot in one line: pods with images, then files with errors.
func show(s Snapshot) string {
	var out []string
	for _, p := range s.Pods {
		out = append(out, p.Name+"="+p.Spec.Containers[0].Image)
	}
	for _, b := range s.FileErrors {
		out = append(out, "bad:"+filepath.Base(b.Path))
	}
	return strings.Join(out, " ")
}

func (w *watched) shows(want string) Snapshot {
	w.t.Helper()
	return w.until("want "+want, func(s Snapshot) bool { return show(s) == want })
}

func (w *watched) path(name string) string { return filepath.Join(w.dir, name) }

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// write rewrites a file in place.
func (w *watched) write(name, content string) {
	w.t.Helper()
	must(w.t, os.WriteFile(w.path(name), []byte(content), 0o600))
}

// swap puts a file in place by rename.
func (w *watched) swap(name, content string) {
	w.t.Helper()
	must(w.t, os.WriteFile(w.path(".tmp"), []byte(content), 0o600), os.Rename(w.path(".tmp"), w.path(name)))
}

func TestFileCreateChangeDelete(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(pod("a", "i:1")), 0o600))
	w := watch(t, DirectoryOptions{Path: dir, RescanInterval: time.Hour})
	first := w.shows("a=i:1")
	if !first.Ready || first.Source != File || len(w.all()) != 1 {
		t.Errorf("the first snapshot must be complete: ready %v, %d snapshots", first.Ready, len(w.all()))
	}
	w.write("b.yml", pod("b", "i:1"))
	w.shows("a=i:1 b=i:1")
	w.swap(
		"c.json",
		`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"c"},"spec":{"containers":[{"name":"c","image":"i:1"}]}}`,
	)
	w.shows("a=i:1 b=i:1 c=i:1")
	w.write("b.yml", pod("b", "i:2"))
	s := w.shows("a=i:1 b=i:2 c=i:1")
	if s.Pods[0] != first.Pods[0] {
		t.Error("an untouched pod has another pointer")
	}
	w.swap("b.yml", pod("b", "i:3"))
	w.shows("a=i:1 b=i:3 c=i:1")
	must(t, os.Remove(w.path("a.yaml")))
	w.shows("b=i:3 c=i:1")
	must(t, os.Rename(w.path("b.yml"), w.path("b.off")))
	w.shows("c=i:1")
	must(t, os.Link(w.path("b.off"), w.path("d.yaml")))
	w.shows("b=i:3 c=i:1")
}

func TestChangesAreDetectedImmediately(t *testing.T) {
	t.Parallel()
	w := watch(t, DirectoryOptions{Path: t.TempDir(), RescanInterval: time.Hour})
	w.shows("")
	var took [2][]time.Duration // by writing in place and by rename
	for i := range 40 {
		began := time.Now()
		if name, content := "a.yaml", pod("a", fmt.Sprintf("i:%d", i)); i%2 == 0 {
			w.write(name, content)
		} else {
			w.swap(name, content)
		}
		w.shows(fmt.Sprintf("a=i:%d", i))
		took[i%2] = append(took[i%2], time.Since(began))
	}
	for i, how := range []string{"in place", "by rename"} {
		slices.Sort(took[i])
		t.Logf("%s: shortest %s, median %s, longest %s", how, took[i][0], took[i][10], took[i][19])
		if took[i][0] >= settleDelay { // the shortest, because the machine may be busy
			t.Errorf("a change %s took %s", how, took[i][0])
		}
	}
}

func TestBadFileKeepsTheLastGoodVersion(t *testing.T) { // S1
	t.Parallel()
	var log bytes.Buffer
	w := watch(
		t,
		DirectoryOptions{Path: t.TempDir(), RescanInterval: time.Hour, Log: slog.New(slog.NewTextHandler(&log, nil))},
	)
	w.shows("")
	w.write("a.yaml", pod("a", "i:1")+"---\n"+pod("b", "i:1"))
	w.write("z.yaml", pod("z", "i:1"))
	good := w.shows("a=i:1 b=i:1 z=i:1")
	w.write("a.yaml", pod("a", "i:2")+"---\n"+pod("b", "i:1")+"  wrong: 1\n")
	bad := w.shows("a=i:1 b=i:1 z=i:1 bad:a.yaml")
	for i := range good.Pods {
		if bad.Pods[i] != good.Pods[i] {
			t.Errorf("pod %s has changed", good.Pods[i].Name)
		}
	}
	b := bad.FileErrors[0]
	if b.Line != 18 || b.Field != "spec.wrong" || b.Message != "unknown field" || !b.LastGoodKept || b.Since.IsZero() {
		t.Errorf("got %+v", b)
	}
	if want := w.path("a.yaml") + ":18: spec.wrong: unknown field"; b.String() != want {
		t.Errorf("got %s, want %s", b, want)
	}
	w.write("n.yaml", "a: [")
	s := w.shows("a=i:1 b=i:1 z=i:1 bad:a.yaml bad:n.yaml")
	if s.FileErrors[1].LastGoodKept || !s.FileErrors[0].Since.Equal(b.Since) {
		t.Errorf("got %+v", s.FileErrors)
	}
	w.write("a.yaml", pod("a", "i:3"))
	must(t, os.Remove(w.path("n.yaml")))
	w.shows("a=i:3 z=i:1")
	w.stop()
	if n := strings.Count(log.String(), "manifest file invalid"); n != 2 {
		t.Errorf("%d lines of log for two bad files:\n%s", n, log.String())
	}
}

func TestFileIsNotReadWhileWritten(t *testing.T) { // S2
	t.Parallel()
	w := watch(t, DirectoryOptions{Path: t.TempDir(), RescanInterval: time.Hour, openWriterDelay: time.Hour})
	w.shows("")
	w.write("a.yaml", pod("a", "i:1")+"---\n"+pod("b", "i:1"))
	w.shows("a=i:1 b=i:1")
	before := len(w.all())

	// The first half of the new version is a valid manifest without pod b.
	f, err := os.OpenFile(w.path("a.yaml"), os.O_WRONLY|os.O_TRUNC, 0)
	must(t, err)
	_, err = f.WriteString(pod("a", "i:2"))
	must(t, err)
	w.write("marker.yaml", pod("marker", "i:1"))
	w.shows("a=i:1 b=i:1 marker=i:1")
	_, err = f.WriteString("---\n" + pod("b", "i:2"))
	must(t, err, f.Close())
	w.shows("a=i:2 b=i:2 marker=i:1")
	for _, s := range w.all()[before:] {
		if !strings.Contains(show(s), "b=") {
			t.Errorf("an incomplete file took effect: %s", show(s))
		}
	}
}

func TestIdleWriterIsNotWaitedFor(t *testing.T) { // S2
	t.Parallel()
	w := watch(t, DirectoryOptions{Path: t.TempDir(), RescanInterval: time.Hour})
	w.shows("")
	f, err := os.Create(w.path("a.yaml"))
	must(t, err)
	defer f.Close() // it is read while it is open
	_, err = f.WriteString(pod("a", "i:1"))
	must(t, err)
	w.shows("a=i:1")
}

func TestSaveByRenameKeepsPods(t *testing.T) {
	t.Parallel()
	w := watch(t, DirectoryOptions{Path: t.TempDir(), RescanInterval: time.Hour, confirmDelay: time.Hour})
	w.shows("")
	w.write("a.yaml", pod("a", "i:1"))
	w.shows("a=i:1")
	for i := 2; i < 12; i++ { // like editors and shells
		switch i % 3 {
		case 0:
			must(t, os.Rename(w.path("a.yaml"), w.path("a.yaml~")))
			w.write("a.yaml", pod("a", fmt.Sprintf("i:%d", i)))
		case 1:
			must(t, os.Remove(w.path("a.yaml")))
			w.swap("a.yaml", pod("a", fmt.Sprintf("i:%d", i)))
		case 2:
			must(t, os.Truncate(w.path("a.yaml"), 0))
			w.write("a.yaml", pod("a", fmt.Sprintf("i:%d", i)))
		}
		w.shows(fmt.Sprintf("a=i:%d", i))
	}
	for _, s := range w.all()[1:] {
		if len(s.Pods) != 1 || len(s.FileErrors) != 0 {
			t.Errorf("snapshot during a save: %q", show(s))
		}
	}
}

func TestEmptiedFileDeletesPods(t *testing.T) {
	t.Parallel()
	w := watch(t, DirectoryOptions{Path: t.TempDir(), RescanInterval: time.Hour})
	w.write("a.yaml", pod("a", "i:1"))
	w.shows("a=i:1")
	w.write("a.yaml", "# nothing any more\n")
	w.shows("")
	w.write("a.yaml", pod("a", "i:1"))
	w.shows("a=i:1")
}

func TestFirstFileKeepsDuplicateObject(t *testing.T) { // S7
	t.Parallel()
	const object = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {from: %s}\n---\napiVersion: " +
		"v1\nkind: Secret\nmetadata: {name: c}\nstringData: {from: %s}\n"
	key := types.NamespacedName{Namespace: "default", Name: "c"}
	from := func(s Snapshot) string {
		return s.Objects[ObjectKey{plan.ConfigMap, key}].ConfigMap.Data["from"] + string(
			s.Objects[ObjectKey{plan.Secret, key}].Secret.Data["from"],
		)
	}
	w := watch(t, DirectoryOptions{Path: t.TempDir(), RescanInterval: time.Hour})
	w.shows("")
	w.write("m.yaml", pod("web", "i:m")+fmt.Sprintf(object, "m", "m"))
	was := w.shows("web=i:m")
	w.write("a.yaml", pod("web", "i:a")+"---\n"+pod("x", "i:a")+fmt.Sprintf(object, "a", "a"))
	s := w.shows("web=i:m x=i:a bad:a.yaml bad:a.yaml bad:a.yaml")
	if b := s.FileErrors[0]; b.Line != 4 ||
		!strings.Contains(b.Message, "Pod default/web is already defined in "+w.path("m.yaml")) {
		t.Errorf("got %s", b)
	}
	if s.Pods[0] != was.Pods[0] || from(s) != "mm" {
		t.Errorf("the first file lost its objects to %s", from(s))
	}
	w.write("m.yaml", pod("web", "i:m2")+fmt.Sprintf(object, "m", "m")) // the owner may change its objects
	w.shows("web=i:m2 x=i:a bad:a.yaml bad:a.yaml bad:a.yaml")
	must(t, os.Remove(w.path("m.yaml")))
	if s := w.shows("web=i:a x=i:a"); from(s) != "aa" {
		t.Errorf("objects of %s", from(s))
	}
	w.write("m.yaml", pod("web", "i:m")+fmt.Sprintf(object, "m", "m"))
	w.shows("web=i:a x=i:a bad:m.yaml bad:m.yaml bad:m.yaml")
}

// At the start the file known to the previous run owns the object, or else the first by name.
func TestPreviousRunDecidesDuplicateObject(t *testing.T) { // S7
	t.Parallel()
	object := func(from string) string {
		return "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {from: " + from + "}\n"
	}
	files := map[string]string{
		"a.yaml": strings.Replace(
			pod("web", "i:a"),
			"  name: web\n",
			"  name: web\n  labels: {a: b}\n",
			1,
		) + object(
			"a",
		),
		"m.yaml": pod("web", "i:m") + object("m"),
		"z.yaml": pod("web", "i:z") + object("z"), // the same UID as of m
	}
	for was, want := range map[string]string{"": "a", "a.yaml": "a", "m.yaml": "m", "z.yaml": "z"} {
		dir := t.TempDir()
		for name, text := range files {
			must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
		}
		known := map[types.UID]*corev1.Pod{}
		if was != "" {
			pod := mustValidate(t, files[was], nil).Pods[0]
			known[pod.UID] = pod
		}
		w := watch(
			t,
			DirectoryOptions{
				Path:           dir,
				RescanInterval: time.Hour,
				PreviousPod:    func(uid types.UID) *corev1.Pod { return known[uid] },
			},
		)
		s := w.until("all are read", func(s Snapshot) bool { return s.Ready })
		got := s.Objects[ObjectKey{plan.ConfigMap, types.NamespacedName{Namespace: "default",
			Name: "c"}}].ConfigMap.Data["from"]
		if len(s.Pods) != 1 || s.Pods[0].Spec.Containers[0].Image != "i:"+want || got != want {
			t.Errorf("known %q: %s, ConfigMap of %s; want %s", was, show(s), got, want)
		}
	}
}

func TestProjectedVolumeUpdate(t *testing.T) {
	t.Parallel()
	w := watch(t, DirectoryOptions{Path: t.TempDir(), RescanInterval: time.Hour})
	project := func(dir, content string) {
		must(t, os.Mkdir(w.path(dir), 0o700), os.WriteFile(w.path(dir+"/a.yaml"), []byte(content), 0o600),
			os.Symlink(dir, w.path("..data_tmp")), os.Rename(w.path("..data_tmp"), w.path("..data")))
	}
	project("..1", pod("a", "i:1"))
	must(t, os.Symlink("..data/a.yaml", w.path("a.yaml")))
	w.shows("a=i:1")
	project("..2", pod("a", "i:2"))
	must(t, os.RemoveAll(w.path("..1")))
	w.shows("a=i:2")
}

func TestDirectoryCreateDeleteReplace(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "manifests")
	w := watch(t, DirectoryOptions{Path: dir, RescanInterval: time.Hour})
	if s := w.shows(""); !s.Ready {
		t.Error("a missing directory must be Ready and empty")
	}
	for i := range 3 {
		must(t, os.Mkdir(dir, 0o700))
		w.write("a.yaml", pod("a", fmt.Sprintf("i:%d", i)))
		w.shows(fmt.Sprintf("a=i:%d", i))
		w.swap("b.yaml", pod("b", "i:1"))
		w.shows(fmt.Sprintf("a=i:%d b=i:1", i))
		must(t, os.RemoveAll(dir))
		w.shows("")
	}
	next := dir + ".next" // replace the whole directory
	must(
		t,
		os.Mkdir(dir, 0o700),
		os.Mkdir(next, 0o700),
		os.WriteFile(filepath.Join(next, "c.yaml"), []byte(pod("c", "i:1")), 0o600),
	)
	w.write("a.yaml", pod("a", "i:1"))
	w.shows("a=i:1")
	must(t, unix.Renameat2(unix.AT_FDCWD, next, unix.AT_FDCWD, dir, unix.RENAME_EXCHANGE))
	w.shows("c=i:1")
	w.write("c.yaml", pod("c", "i:2"))
	w.shows("c=i:2")
}

func TestSingleFileSource(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := watch(t, DirectoryOptions{Path: filepath.Join(dir, "pod.manifest"), RescanInterval: time.Hour})
	w.shows("")
	must(
		t,
		os.WriteFile(filepath.Join(dir, "other.yaml"), []byte(pod("x", "i:1")), 0o600),
		os.WriteFile(w.dir, []byte(pod("a", "i:1")), 0o600),
	)
	w.shows("a=i:1")
	must(t, os.WriteFile(w.dir+".new", []byte(pod("a", "i:2")), 0o600), os.Rename(w.dir+".new", w.dir))
	w.shows("a=i:2")
	must(t, os.Remove(w.dir))
	w.shows("")
}

func TestIgnoredFileNames(t *testing.T) { // S6
	t.Parallel()
	w := watch(t, DirectoryOptions{Path: t.TempDir(), RescanInterval: 50 * time.Millisecond})
	for _, name := range []string{".hidden.yaml", "a.yaml~", "#a.yaml#", "a.yaml.swp", ".a.yaml.swp", "a.yaml.bak",
		"README", "a.txt", "~a.yaml", "4913"} {
		w.write(name, "rubbish: [")
	}
	must(t, os.Mkdir(w.path("dir.yaml"), 0o700))
	w.write("a.yaml", pod("a", "i:1"))
	w.shows("a=i:1")
	must(t, os.Mkdir(w.path("later.yaml"), 0o700))
	w.write("b.yaml", pod("b", "i:1"))
	w.shows("a=i:1 b=i:1")
	for _, s := range w.all() {
		if len(s.FileErrors) > 0 {
			t.Errorf("unexpected error %s", s.FileErrors[0])
		}
	}
}

// Files that are ignored by convention are not logged.
func TestUnreadFileNamesAreLoggedOnce(t *testing.T) {
	t.Parallel()
	var log logged
	w := watch(
		t,
		DirectoryOptions{
			Path:           t.TempDir(),
			RescanInterval: 20 * time.Millisecond,
			Log:            slog.New(slog.NewTextHandler(&log, nil)),
		},
	)
	for _, name := range []string{".hidden", "a.yaml~", "#a.yaml#", "a.swp", "a.yaml.bak", "~a.yaml", "a.yaml.dpkg-old",
		"a.conf.dpkg-dist"} {
		w.write(name, pod("none", "i:1"))
	}
	must(t, os.Mkdir(w.path("folder"), 0o700))
	w.write("a.manifest", pod("a", "i:1"))
	w.shows("a=i:1")
	const message = "files ignored because of their names"
	for i, name := range []string{"web", "web.conf", "web"} {
		if i == 2 { // a recreated file is logged again
			must(t, os.Remove(w.path(name)))
			w.rescanned()
		}
		w.write(name, pod("none", "i:1"))
		log.until(t, i+1, message)
	}
	w.rescanned()
	text := log.String()
	if n := strings.Count(text, message); n != 3 || !strings.Contains(text, "names=web.conf\n") ||
		strings.Count(text, "names=web\n") != 2 {
		t.Errorf("logged %d times:\n%s", n, text)
	}
	w.shows("a=i:1")
}

// rescanned waits for a complete rescan.
func (w *watched) rescanned() {
	w.t.Helper()
	elsewhere := filepath.Join(w.t.TempDir(), "x") // without inotify events
	must(w.t, os.WriteFile(elsewhere, []byte(pod("z", "i:1")), 0o600), os.Symlink(elsewhere, w.path("z.yaml")))
	w.until("the file is read", func(s Snapshot) bool { return strings.Contains(show(s), "z=i:1") })
	must(w.t, os.WriteFile(elsewhere, []byte(pod("z", "i:2")), 0o600))
	w.until("the file is read again", func(s Snapshot) bool { return strings.Contains(show(s), "z=i:2") })
	must(w.t, os.Remove(w.path("z.yaml")))
	w.until("the file is deleted", func(s Snapshot) bool { return !strings.Contains(show(s), "z=") })
}

// logged is a log that can be read while it is written.
type logged struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// until waits until the log contains the text n times.
func (l *logged) until(t *testing.T, n int, message string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); strings.Count(l.String(), message) < n; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not %d times in the log: %q\n%s", n, message, l.String())
		}
	}
}

func TestNonRegularAndOversizedFiles(t *testing.T) { // S6
	t.Parallel()
	w := watch(t, DirectoryOptions{Path: t.TempDir(), RescanInterval: time.Hour})
	must(t, unix.Mkfifo(w.path("fifo.yaml"), 0o600))
	must(
		t,
		os.Symlink("/dev/zero", w.path("zero.yaml")),
		os.Symlink("nowhere", w.path("nowhere.yaml")),
		os.Symlink("loop.yaml", w.path("loop.yaml")),
	)
	f, err := os.Create(w.path("huge.yaml"))
	must(t, err, f.Truncate(MaxFileSize+1), f.Close())
	w.write("a.yaml", pod("a", "i:1"))
	s := w.shows("a=i:1 bad:fifo.yaml bad:huge.yaml bad:loop.yaml bad:zero.yaml")
	for i, want := range []string{"not a regular file", "10485761 bytes, more than the limit of 10485760",
		"too many levels of symbolic links", "not a regular file"} {
		if !strings.Contains(s.FileErrors[i].Message, want) {
			t.Errorf("got %s, want %s", s.FileErrors[i], want)
		}
	}
}

func TestRescanFindsChangesWithoutInotify(t *testing.T) {
	t.Parallel()
	dir, elsewhere := t.TempDir(), filepath.Join(t.TempDir(), "x.yaml")
	must(
		t,
		os.WriteFile(elsewhere, []byte(pod("a", "i:1")), 0o600),
		os.Symlink(elsewhere, filepath.Join(dir, "a.yaml")),
	)
	w := watch(t, DirectoryOptions{Path: dir, RescanInterval: 20 * time.Millisecond})
	w.shows("a=i:1")
	must(t, os.WriteFile(elsewhere, []byte(pod("a", "i:2")), 0o600))
	w.shows("a=i:2")
}

func TestThousandFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for i := range 1000 {
		must(
			t,
			os.WriteFile(
				filepath.Join(dir, fmt.Sprintf("p%04d.yaml", i)),
				[]byte(pod(fmt.Sprintf("p%04d", i), "i:1")),
				0o600,
			),
		)
		if i%10 == 0 {
			must(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("r%04d.yaml", i)), []byte("x: [\x00"), 0o600),
				os.WriteFile(filepath.Join(dir, fmt.Sprintf("r%04d.txt", i)), bytes.Repeat([]byte("x"), 1<<12), 0o600))
		}
	}
	began := time.Now()
	w := watch(t, DirectoryOptions{Path: dir, RescanInterval: time.Hour})
	whole := func(n int) func(Snapshot) bool {
		return func(s Snapshot) bool { return len(s.Pods) == n && len(s.FileErrors) == 100 }
	}
	w.until("all are read", whole(1000))
	t.Logf("read in %s", time.Since(began))
	if n := len(w.all()); n != 1 {
		t.Errorf("%d snapshots, the first one must be complete", n)
	}
	w.write("new.yaml", pod("new", "i:1"))
	w.until("one more", whole(1001))
	for i := range 1000 {
		must(t, os.Remove(w.path(fmt.Sprintf("p%04d.yaml", i))))
	}
	w.until("one is left", whole(1))
}

func TestRunWaitsForGoroutines(t *testing.T) {
	before := runtime.NumGoroutine()
	for range 10 {
		w := watch(t, DirectoryOptions{Path: t.TempDir()})
		w.write("a.yaml", pod("a", "i:1"))
		w.shows("a=i:1")
		w.stop()
	}
	for limit := time.Now().Add(time.Minute); runtime.NumGoroutine() > before; runtime.Gosched() {
		if time.Now().After(limit) { // goroutines may take a moment to end
			t.Fatalf("%d goroutines, %d before", runtime.NumGoroutine(), before)
		}
	}
}

// A recreated pod is a new one.
func TestPreviousPodIsUsedAtStartOnly(t *testing.T) {
	t.Parallel()
	was := mustValidate(t, pod("a", "i:1"), nil).Pods[0].DeepCopy()
	was.Generation = 7
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(pod("a", "i:1")), 0o600))
	w := watch(t, DirectoryOptions{Path: dir, PreviousPod: func(types.UID) *corev1.Pod { return was }})
	if g := w.shows("a=i:1").Pods[0].Generation; g != 7 {
		t.Errorf("generation %d, want 7", g)
	}
	must(t, os.Remove(w.path("a.yaml")))
	w.shows("")
	w.swap("a.yaml", pod("a", "i:1"))
	if g := w.shows("a=i:1").Pods[0].Generation; g != 1 {
		t.Errorf("generation %d, want 1", g)
	}
}
