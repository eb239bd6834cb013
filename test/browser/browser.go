// Package browser drives headless Chromium in end-to-end tests of the web page. Every wait ends with a condition or
// fails the test after a timeout.
package browser

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"berth/test/hosts"
)

const (
	// startTimeout limits the start of Chromium on a busy machine.
	startTimeout = 3 * time.Minute
	// waitTimeout limits each wait for a condition.
	waitTimeout  = 2 * time.Minute
	pollInterval = 50 * time.Millisecond
)

// chromium is the browser of Debian's package of that name.
const chromium = "/usr/bin/chromium"

// Page is a page of a browser of its own.
type Page struct {
	t        testing.TB
	ctx      context.Context //nolint:containedctx // the page is this context
	problems chan string
	home     string // directory of all files of the browser
}

// Open starts a browser with an empty profile and opens a page. It ends with the test.
func Open(t testing.TB, width, height int) *Page {
	t.Helper()
	if _, err := exec.LookPath(chromium); err != nil {
		t.Fatalf("%v: run make deps", err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	home, err := os.MkdirTemp("", "berth-browser-*")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeHome(t, home) })
	options := append(chromedp.DefaultExecAllocatorOptions[:], //nolint:gocritic // a new slice
		chromedp.ExecPath(self), chromedp.UserDataDir(filepath.Join(home, "profile")), chromedp.NoSandbox,
		chromedp.WindowSize(width, height), chromedp.WSURLReadTimeout(startTimeout),
		// The certificate authority of each server is its own.
		chromedp.Flag("ignore-certificate-errors", true),
		chromedp.Flag("disable-breakpad", true), chromedp.Flag("disable-crash-reporter", true),
		// Caches, the key store and temporary files stay below home.
		chromedp.Env(launcherVariable+"=1", "HOME="+home, "TMPDIR="+home,
			"XDG_CONFIG_HOME="+home, "XDG_CACHE_HOME="+home),
	)
	allocator, stopAllocator := chromedp.NewExecAllocator(context.WithoutCancel(t.Context()), options...)
	// Events that the library does not know are not errors.
	ctx, stop := chromedp.NewContext(allocator, chromedp.WithErrorf(func(string, ...any) {}))
	t.Cleanup(func() {
		stop()
		stopAllocator()
		chromedp.FromContext(allocator).Allocator.Wait()
	})
	p := &Page{t: t, ctx: ctx, problems: make(chan string, 1000), home: home}
	chromedp.ListenTarget(ctx, p.listen)
	// The first run must have no deadline of its own: it would end the browser.
	overdue := time.AfterFunc(startTimeout, stop)
	err = chromedp.Run(ctx, log.Enable())
	if !overdue.Stop() {
		t.Fatalf("start the browser: timed out after %v: %v", startTimeout, err)
	}
	if err != nil {
		t.Fatalf("start the browser: %v", err)
	}
	t.Cleanup(p.screenshotOfFailure)
	return p
}

// removeHome removes the directory of a browser when its last process has ended. Processes that outlive the main one
// would create files again.
func removeHome(t testing.TB, dir string) {
	ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
	defer cancel()
	if err := hosts.WaitFor(ctx, "end of the processes of "+dir, func() (bool, error) {
		left := processesOf(dir)
		for _, pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL) // fails if the process has ended
		}
		return len(left) == 0, nil
	}); err != nil {
		t.Error(err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Error(err)
	}
}

// processesOf returns the processes with this home directory. It ignores those that have ended.
func processesOf(home string) (out []int) {
	files, _ := filepath.Glob("/proc/[0-9]*/environ") // the pattern is valid
	for _, name := range files {
		environment, err := os.ReadFile(name)
		if err != nil || !slices.Contains(strings.Split(string(environment), "\x00"), "HOME="+home) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name))); err == nil {
			out = append(out, pid)
		}
	}
	return out
}

// listen records exceptions of scripts and violations of the content security policy.
func (p *Page) listen(event any) {
	var text string
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		text = e.ExceptionDetails.Error()
	case *log.EventEntryAdded:
		if e.Entry.Source == log.SourceSecurity || e.Entry.Source == log.SourceViolation {
			text = e.Entry.Text
		}
	}
	if text == "" {
		return
	}
	select {
	case p.problems <- text:
	default:
	}
}

// CheckNoProblems fails the test if a script failed or violated the policy of the page.
func (p *Page) CheckNoProblems() {
	p.t.Helper()
	for {
		select {
		case text := <-p.problems:
			p.t.Errorf("problem in the browser: %s", text)
		default:
			return
		}
	}
}

// Run runs actions within the timeout of a wait.
func (p *Page) Run(actions ...chromedp.Action) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, waitTimeout)
	defer cancel()
	if err := chromedp.Run(ctx, actions...); err != nil {
		shown, textErr := p.Text()
		if textErr != nil {
			shown = textErr.Error()
		}
		p.t.Fatalf("browser: %v; the page shows:\n%s", err, shown)
	}
}

// Go navigates to an address.
func (p *Page) Go(url string) {
	p.t.Helper()
	p.Run(chromedp.Navigate(url))
}

// Eval returns the value of an expression, which must be a string, a number or a boolean.
func (p *Page) Eval(expression string) string {
	p.t.Helper()
	var out any
	p.Run(chromedp.Evaluate(expression, &out))
	return fmt.Sprint(out)
}

// Text returns the visible text of the page.
func (p *Page) Text() (string, error) {
	ctx, cancel := context.WithTimeout(p.ctx, waitTimeout)
	defer cancel()
	var out string
	if err := chromedp.Run(ctx, chromedp.Evaluate(`document.body.innerText`, &out)); err != nil {
		return "", fmt.Errorf("text of the page: %w", err)
	}
	return out, nil
}

// WaitText waits until the page shows all texts.
func (p *Page) WaitText(texts ...string) {
	p.t.Helper()
	p.wait(func(shown string) string {
		for _, text := range texts {
			if !strings.Contains(shown, text) {
				return fmt.Sprintf("the text %q", text)
			}
		}
		return ""
	})
}

// WaitNoText waits until the page does not show a text.
func (p *Page) WaitNoText(text string) {
	p.t.Helper()
	p.wait(func(shown string) string {
		if strings.Contains(shown, text) {
			return fmt.Sprintf("the text %q to disappear", text)
		}
		return ""
	})
}

// wait waits until missing returns an empty text for the visible text of the page. Without this text, as during a
// navigation, it tries again.
func (p *Page) wait(missing func(shown string) string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, waitTimeout)
	defer cancel()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		shown, err := p.Text()
		what := "the text of the page"
		if err != nil {
			shown = err.Error()
		} else if what = missing(shown); what == "" {
			return
		}
		select {
		case <-ctx.Done():
			p.t.Fatalf("timed out while waiting for %s; the page shows:\n%s", what, shown)
		case <-tick.C:
		}
	}
}

// Click clicks the first visible element with a role and a name: "button", "link" or "checkbox".
func (p *Page) Click(role, name string) {
	p.t.Helper()
	p.Run(chromedp.Click(elementPath(role, name), chromedp.BySearch, chromedp.NodeVisible))
}

// Has reports whether there is an element with a role and a name.
func (p *Page) Has(role, name string) bool {
	p.t.Helper()
	return p.Eval(fmt.Sprintf(`document.evaluate(%q, document, null, XPathResult.BOOLEAN_TYPE).booleanValue`,
		elementPath(role, name))) == "true"
}

func elementPath(role, name string) string {
	switch role {
	case "link":
		return fmt.Sprintf(`//a[normalize-space()='%s']`, name)
	case "checkbox":
		return fmt.Sprintf(`//label[normalize-space()='%s']/input`, name)
	case "submit":
		return fmt.Sprintf(`//dialog//button[@type='submit' and normalize-space()='%s']`, name)
	default:
		return fmt.Sprintf(`//%s[normalize-space()='%s']`, role, name)
	}
}

// Type replaces the content of the input that a CSS selector finds.
func (p *Page) Type(selector, text string) {
	p.t.Helper()
	p.Run(chromedp.Focus(selector, chromedp.ByQuery),
		chromedp.Evaluate(fmt.Sprintf(`document.querySelector(%q).select()`, selector), nil),
		chromedp.SendKeys(selector, text, chromedp.ByQuery))
}

// screenshotDir is the directory of screenshots, below the root of the repository.
const screenshotDir = ".cache/screenshots"

// screenshotOfFailure saves a screenshot if the test has failed.
func (p *Page) screenshotOfFailure() {
	if !p.t.Failed() {
		return
	}
	root, err := hosts.RepoRoot()
	if err == nil {
		err = p.screenshot(filepath.Join(root, screenshotDir, strings.ReplaceAll(p.t.Name(), "/", "-")+".png"))
	}
	if err != nil {
		p.t.Logf("screenshot: %v", err)
	}
}

// Screenshot saves a screenshot if BERTH_SCREENSHOTS names a directory.
func (p *Page) Screenshot(name string) {
	p.t.Helper()
	dir := os.Getenv("BERTH_SCREENSHOTS")
	if dir == "" {
		return
	}
	if err := p.screenshot(filepath.Join(dir, name+".png")); err != nil {
		p.t.Errorf("screenshot: %v", err)
	}
}

func (p *Page) screenshot(path string) error {
	ctx, cancel := context.WithTimeout(p.ctx, waitTimeout)
	defer cancel()
	var image []byte
	if err := chromedp.Run(ctx, chromedp.CaptureScreenshot(&image)); err != nil {
		return err
	}
	return errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, image, 0o644))
}
