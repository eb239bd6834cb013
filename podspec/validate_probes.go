package podspec

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// probesAndHooks validates the probes and lifecycle hooks of a container.
func (k *validator) probesAndHooks(at *field.Path, c *corev1.Container) {
	k.probe(at.Child("livenessProbe"), c, c.LivenessProbe, true)
	k.probe(at.Child("readinessProbe"), c, c.ReadinessProbe, false)
	k.probe(at.Child("startupProbe"), c, c.StartupProbe, true)
	if c.Lifecycle == nil {
		return
	}
	at = at.Child("lifecycle")
	k.hook(at.Child("postStart"), c, c.Lifecycle.PostStart)
	k.hook(at.Child("preStop"), c, c.Lifecycle.PreStop)
	if s := c.Lifecycle.StopSignal; s != nil {
		k.stopSignal(at.Child("stopSignal"), *s)
	}
}

// probe validates a probe. kills is set if its failure restarts the container.
func (k *validator) probe(at *field.Path, c *corev1.Container, p *corev1.Probe, kills bool) {
	if p == nil {
		return
	}
	if k.exactlyOne(at, "", "`exec`, `httpGet`, `tcpSocket`, `grpc`",
		p.Exec != nil, p.HTTPGet != nil, p.TCPSocket != nil, p.GRPC != nil) {
		k.action(at, p.Exec, p.HTTPGet, p.TCPSocket)
		k.grpc(at.Child("grpc"), p.GRPC)
		k.portsOf(at, c, p.HTTPGet, p.TCPSocket)
	}
	k.notNegative(at.Child("initialDelaySeconds"), int64(p.InitialDelaySeconds))
	k.positive(at.Child("timeoutSeconds"), int64(p.TimeoutSeconds))
	k.positive(at.Child("periodSeconds"), int64(p.PeriodSeconds))
	k.positive(at.Child("successThreshold"), int64(p.SuccessThreshold))
	k.positive(at.Child("failureThreshold"), int64(p.FailureThreshold))
	if kills && p.SuccessThreshold > 1 {
		k.invalid(at.Child("successThreshold"), p.SuccessThreshold, "must be 1")
	}
	if g := p.TerminationGracePeriodSeconds; g != nil {
		if !kills {
			k.invalid(at.Child("terminationGracePeriodSeconds"), *g, "must not be set for readinessProbes")
		} else {
			k.positive(at.Child("terminationGracePeriodSeconds"), *g)
		}
	}
}

// portsOf validates the ports of a probe or hook.
func (k *validator) portsOf(
	at *field.Path,
	c *corev1.Container,
	get *corev1.HTTPGetAction,
	tcp *corev1.TCPSocketAction,
) {
	if get != nil {
		k.portOf(at.Child("httpGet", "port"), c, get.Port)
	}
	if tcp != nil {
		k.portOf(at.Child("tcpSocket", "port"), c, tcp.Port)
	}
}

// portOf requires a named port to be a port of the container. The probe or hook could not run
// otherwise.
func (k *validator) portOf(at *field.Path, c *corev1.Container, p intstr.IntOrString) {
	if k.stored {
		return // API servers do not validate this
	}
	if _, ok := ResolvePort(c, p); !ok && p.Type == intstr.String && len(validation.IsValidPortName(p.StrVal)) == 0 {
		k.invalid(at, p.StrVal, "must be the name of a port of the container")
	}
}

// action validates the fields shared by probes and hooks.
func (k *validator) action(
	at *field.Path,
	exec *corev1.ExecAction,
	get *corev1.HTTPGetAction,
	tcp *corev1.TCPSocketAction,
) {
	if exec != nil && len(exec.Command) == 0 {
		k.required(at.Child("exec", "command"), "")
	}
	if tcp != nil {
		k.portNameOrNumber(at.Child("tcpSocket", "port"), tcp.Port)
	}
	if get == nil {
		return
	}
	at = at.Child("httpGet")
	if get.Path == "" {
		k.required(at.Child("path"), "")
	}
	k.portNameOrNumber(at.Child("port"), get.Port)
	oneOf(k, at.Child("scheme"), get.Scheme, corev1.URISchemeHTTP, corev1.URISchemeHTTPS)
	for i, h := range get.HTTPHeaders {
		k.each(at.Child("httpHeaders").Index(i).Child("name"), h.Name, validation.IsHTTPHeaderName(h.Name))
	}
	oneOfIfSet(k, at.Child("protocol"), get.Protocol, corev1.HTTPProtocolHTTP1, corev1.HTTPProtocolHTTP2)
	if p := get.Protocol; p != nil && *p == corev1.HTTPProtocolHTTP2 && get.Scheme != corev1.URISchemeHTTP {
		k.invalid(at.Child("protocol"), *p, "must be used with scheme HTTP")
	}
}

func (k *validator) grpc(at *field.Path, g *corev1.GRPCAction) {
	if g == nil {
		return
	}
	k.each(at.Child("port"), g.Port, validation.IsValidPortNum(int(g.Port)))
	oneOfIfSet(k, at.Child("mode"), g.Mode, corev1.GRPCProbeModePlaintext, corev1.GRPCProbeModeTLS)
}

func (k *validator) hook(at *field.Path, c *corev1.Container, h *corev1.LifecycleHandler) {
	if h == nil || !k.exactlyOne(at, "", "`exec`, `httpGet`, `tcpSocket`, `sleep`",
		h.Exec != nil, h.HTTPGet != nil, h.TCPSocket != nil, h.Sleep != nil) {
		return
	}
	k.action(at, h.Exec, h.HTTPGet, h.TCPSocket)
	k.portsOf(at, c, h.HTTPGet, h.TCPSocket)
	if h.Sleep == nil {
		return
	}
	grace := int64(corev1.DefaultTerminationGracePeriodSeconds)
	if g := k.spec.TerminationGracePeriodSeconds; g != nil {
		grace = *g
	}
	if s := h.Sleep.Seconds; s < 0 || s > grace {
		k.invalid(at.Child("sleep", "seconds"), s,
			"must be non-negative and not greater than terminationGracePeriodSeconds (%d)", grace)
	}
}

func (k *validator) stopSignal(at *field.Path, s corev1.Signal) {
	if k.spec.OS == nil {
		k.forbidden(at, "may not be set for containers with empty `spec.os.name`")
	}
	if !isSignal(string(s)) {
		k.add(field.NotSupported(at, s, strings.Fields(plainSignals+" SIGRTMIN+<1-15> SIGRTMAX-<1-14>")))
	}
}

// plainSignals are the named signals of Linux.
const plainSignals = "SIGABRT SIGALRM SIGBUS SIGCHLD SIGCLD SIGCONT SIGFPE SIGHUP SIGILL SIGINT SIGIO SIGIOT " +
	"SIGKILL SIGPIPE " +
	"SIGPOLL SIGPROF SIGPWR SIGQUIT SIGSEGV SIGSTKFLT SIGSTOP SIGSYS SIGTERM SIGTRAP SIGTSTP SIGTTIN SIGTTOU " +
	"SIGURG SIGUSR1 " +
	"SIGUSR2 SIGVTALRM SIGWINCH SIGXCPU SIGXFSZ SIGRTMIN SIGRTMAX"

// isSignal reports whether s is a named or real-time signal.
func isSignal(s string) bool {
	if slices.Contains(strings.Fields(plainSignals), s) {
		return true
	}
	if n, ok := strings.CutPrefix(s, "SIGRTMIN+"); ok {
		return isCount(n, 15)
	}
	n, ok := strings.CutPrefix(s, "SIGRTMAX-")
	return ok && isCount(n, 14)
}

// isCount reports whether s is a number from 1 to most without leading zeros.
func isCount(s string, most int) bool {
	n := 0
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return false
		}
		n = min(n*10+int(c-'0'), 100)
	}
	return n >= 1 && n <= most && s[0] != '0'
}
