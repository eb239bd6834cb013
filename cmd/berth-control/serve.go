package main

import (
	"context"
	"strconv"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"berth/control"
	"berth/control/admission"
	"berth/node"
	"berth/systemd"
)

func serveCommand() *cobra.Command {
	c, old := control.Default(), &deprecatedFlags{}
	var file string
	var verbosity int
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the control server",
		Long: `Run the control server until SIGTERM or SIGINT.

The first start creates in the data directory: a certificate authority and certificates (pki/), a key for the
encryption of secrets (pki/encryption.yaml), the store (etcd/), and an administrator kubeconfig
(admin.kubeconfig). Later starts use them again. Certificates are renewed before they expire, or at the next
start if the server was stopped for too long.

  kubectl --kubeconfig /var/lib/berth-control/admin.kubeconfig get nodes

A configuration file has the same settings as the flags. A flag takes precedence:

  apiVersion: ` + control.ConfigFileAPIVersion + `
  kind: ` + control.ConfigFileKind + `
  dataDir: /var/lib/berth-control
  bindAddress: "::"
  securePort: 6443
  tlsSANs: [control.example.com]    # additional names and addresses in the server certificate
  podRanges: [10.42.0.0/16]         # CIDR for pods; each node gets a part of it
  nodeMonitorGracePeriod: 40s       # time without a heartbeat until a node counts as unreachable
  serviceRanges: [10.43.0.0/16]     # CIDR for Services
  loadBalancerPool: [192.0.2.16/28] # addresses for Services of type LoadBalancer
  advertiseAddress: 192.0.2.1       # address by which pods reach the server
  controllers: ["*"]                # controllers to enable, as in --controllers
  authentication:                   # further users, see docs/control-access.md
    configFile: /etc/berth-control/authentication.yaml
  admissionControlConfigFile: /etc/berth-control/admission.yaml
  audit:                            # audit log, see the flags --audit-*
    policyFile: /etc/berth-control/audit-policy.yaml
    log: {path: audit.log, maxAge: 0, maxBackup: 3, maxSize: 16}
    webhook: {configFile: /etc/berth-control/audit-webhook.kubeconfig}
  etcd:                             # external etcd cluster instead of the embedded store
    servers: [https://10.0.0.1:2379]
    caFile: /etc/etcd/ca.crt
    certFile: /etc/etcd/client.crt
    keyFile: /etc/etcd/client.key
  ui: true                          # serve the web page below /ui/

Known controllers: ` + strings.Join(control.ControllerNames(), ", ") + `.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c.Version = version
			c.Log = newLog(verbosity)
			if file != "" {
				f, err := control.ReadConfigFile(file)
				if err != nil {
					return err
				}
				for _, warning := range f.Deprecations() {
					c.Log.Warn("deprecated configuration field", "path", file, "warning", warning)
				}
				f.ApplyTo(&c, cmd.Flags().Changed)
			}
			old.applyTo(&c)
			return runServer(cmd.Context(), c)
		},
	}
	serveFlags(cmd.Flags(), &c, &verbosity)
	old.addTo(cmd.Flags(), &c, &verbosity)
	cmd.Flags().StringVar(&file, "config", "", "configuration file")
	return cmd
}

// runServer runs a server until ctx ends, and reports its state to systemd.
func runServer(ctx context.Context, c control.Config) error {
	// The API server library sends READY to systemd when it listens, before it can serve
	// requests.
	manager, err := systemd.ClaimNotifySocket()
	if err != nil {
		return err
	}
	server, err := control.New(ctx, c)
	if err != nil {
		return err
	}
	// Release the memory that only the startup needs, and collect garbage earlier: together
	// this saves a sixth of the memory.
	background, stop := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	tasks.Go(func() {
		node.TrimMemory(background, server.Ready(), func(err error) {
			c.Log.Debug("memory release failed", "err", err)
		})
	})
	tasks.Go(func() { notify(background, manager, server, c) })
	defer tasks.Wait()
	defer stop()
	return server.Run(ctx)
}

// notify reports to systemd when the server is ready, keeps the watchdog fed while the server is
// live, and reports the shutdown.
func notify(ctx context.Context, manager systemd.Notifier, server *control.Server, c control.Config) {
	send := func(states ...systemd.State) {
		if err := manager.Notify(states...); err != nil {
			c.Log.Warn("service manager notification failed", "err", err)
		}
	}
	send(systemd.Status("opening the store"))
	select {
	case <-ctx.Done():
		return
	case <-server.Ready():
	}
	send(systemd.Ready, systemd.Status("serving the API on "+c.Listen))
	runWatchdog(ctx, manager, server.CheckLiveness, c.Log)
	<-ctx.Done()
	send(systemd.Stopping)
}

func serveFlags(f *pflag.FlagSet, c *control.Config, verbosity *int) {
	f.IntVarP(verbosity, "v", "v", 0, "log verbosity: 0 to 3 state changes, 4 and higher debug")
	f.Var(listenAddress{&c.Listen}, "bind-address",
		"IP address of the API; an unspecified address (0.0.0.0 or ::) selects all interfaces")
	f.Var(listenPort{&c.Listen}, "secure-port", "port of the API; 0 selects a free port")
	f.StringSliceVar(
		&c.EnabledAdmissionPlugins,
		"enable-admission-plugins",
		nil,
		"admission plugins to enable in addition to the default ones; disabled by default: "+
			strings.Join(admission.NamesDisabledByDefault(), ", "),
	)
	f.StringVar(
		&c.AdmissionConfigFile,
		"admission-control-config-file",
		"",
		"file of kind AdmissionConfiguration (apiserver.config.k8s.io) with the configuration of admission plugins",
	)
	f.StringSliceVar(
		&c.DisabledAdmissionPlugins,
		"disable-admission-plugins",
		nil,
		"admission plugins to disable: "+strings.Join(admission.Names(), ", "),
	)
	f.StringSliceVar(
		&c.Controllers,
		"controllers",
		c.Controllers,
		"controllers to enable: '*' enables all, 'foo' enables "+
			"the controller foo, '-foo' disables it; known controllers: "+strings.Join(control.ControllerNames(), ", "),
	)
	f.BoolVar(&c.UI, "ui", c.UI, "serve the web page below /ui/; berth-control ui prints a link to it")
	storeFlags(f, c)
	tokenAndCertificateFlags(f, c)
	nodeAndServiceFlags(f, c)
	authenticationFlags(f, &c.Authentication)
	requestFlags(f, c)
	auditFlags(f, &c.Audit)
}

// storeFlags defines the flags of the store.
func storeFlags(f *pflag.FlagSet, c *control.Config) {
	f.StringVar(
		&c.DataDir,
		"data-dir",
		c.DataDir,
		"directory of the store, the certificates and admin.kubeconfig; created at the first start",
	)
	f.StringSliceVar(
		&c.Etcd.Endpoints,
		"etcd-servers",
		nil,
		"URLs of an external etcd cluster to use instead of the embedded store",
	)
	f.StringVar(&c.Etcd.CAFile, "etcd-cafile", "", "CA certificate of the etcd cluster")
	f.StringVar(&c.Etcd.CertFile, "etcd-certfile", "", "client certificate for the etcd cluster")
	f.StringVar(&c.Etcd.KeyFile, "etcd-keyfile", "", "key of the client certificate for the etcd cluster")
	f.StringVar(
		&c.EncryptionConfig,
		"encryption-provider-config",
		"",
		"EncryptionConfiguration file to use instead of DATA-DIR/pki/encryption.yaml",
	)
	f.BoolVar(
		&c.EncryptionConfigReload,
		"encryption-provider-config-automatic-reload",
		false,
		"apply changes of the file in --encryption-provider-config while the server runs; all KMS providers then "+
			"have one health check, kms-providers",
	)
	f.DurationVar(&c.EventTTL, "event-ttl", c.EventTTL, "time after which events are deleted")
	f.DurationVar(
		&c.EtcdCompactionInterval,
		"etcd-compaction-interval",
		c.EtcdCompactionInterval,
		"interval of etcd compaction; older revisions are not available to watches and paged lists",
	)
	f.DurationVar(
		&c.EtcdDefragmentationInterval,
		"etcd-defragmentation-interval",
		c.EtcdDefragmentationInterval,
		"interval at which the embedded store is checked for defragmentation; it is defragmented when 64 MiB and half "+
			"of its file are unused",
	)
}

// tokenAndCertificateFlags defines the flags of service account tokens and certificates.
func tokenAndCertificateFlags(f *pflag.FlagSet, c *control.Config) {
	f.StringSliceVar(&c.TLSSANs, "tls-san", nil, "additional DNS names and IP addresses for the server certificate")
	f.StringVar(
		&c.ServiceAccountIssuer,
		"service-account-issuer",
		c.ServiceAccountIssuer,
		"issuer of service account tokens, a URL",
	)
	f.StringVar(
		&c.ServiceAccountJWKSURI,
		"service-account-jwks-uri",
		c.ServiceAccountJWKSURI,
		"https URL of the public keys in /.well-known/openid-configuration (default: /openid/v1/jwks of the issuer)",
	)
	f.DurationVar(
		&c.MaxTokenExpiration,
		"service-account-max-token-expiration",
		0,
		"maximum validity of a service account token, regardless of the request; nodes renew the tokens of pods at "+
			"80%; 0 means no limit",
	)
	f.BoolVar(
		&c.ExtendTokenExpiration,
		"service-account-extend-token-expiration",
		c.ExtendTokenExpiration,
		"extend the validity of tokens injected into pods to a year, or to the maximum, for clients that read their "+
			"token only once; nodes still renew the tokens every hour, and the tokens become invalid with the pod",
	)
	f.DurationVar(
		&c.OwnCertificateDuration,
		"own-certificate-duration",
		c.OwnCertificateDuration,
		"validity of the server's own certificates and of the certificate in admin.kubeconfig; they are renewed when "+
			"a third of it is left",
	)
	f.DurationVar(
		&c.ClusterSigningDuration,
		"cluster-signing-duration",
		c.ClusterSigningDuration,
		"maximum validity of the certificates that the server signs for nodes, which renew them automatically, and "+
			"for other requests",
	)
	f.DurationVar(
		&c.NodeReturnPeriod,
		"node-return-period",
		c.NodeReturnPeriod,
		"time after the expiry of its certificate in which a node can still renew it with the old key; 0: the node "+
			"has to join again",
	)
}

// nodeAndServiceFlags defines the flags of nodes, pod addresses and Services.
func nodeAndServiceFlags(f *pflag.FlagSet, c *control.Config) {
	f.Var(
		&cidrList{&c.ClusterCIDRs},
		"cluster-cidr",
		"CIDR for pods; each node gets a part of it (/24, IPv6 /64); at most one per IP family, empty for none",
	)
	f.DurationVar(
		&c.NodeMonitorGracePeriod,
		"node-monitor-grace-period",
		c.NodeMonitorGracePeriod,
		"time without a heartbeat until a node counts as unreachable; nodes renew their lease every 10s",
	)
	f.Var(
		&cidrList{&c.ServiceCIDRs},
		"service-cluster-ip-range",
		"CIDR for Services; at most one per IP family, the first is the default family",
	)
	f.TextVar(
		&c.ServiceNodePorts,
		"service-node-port-range",
		c.ServiceNodePorts,
		"port range for Services of type NodePort",
	)
	setType(f, "service-node-port-range", "portRange")
	f.Var(
		&poolFlag{&c.LoadBalancerPool},
		"load-balancer-pool",
		"addresses for Services of type LoadBalancer: CIDRs such as 192.0.2.16/28 and ranges such as "+
			"192.0.2.10-192.0.2.20; nodes announce them on their networks; if empty, these Services get the "+
			"addresses of nodes",
	)
	f.TextVar(
		&c.AdvertiseAddress,
		"advertise-address",
		c.AdvertiseAddress,
		"IP address by which pods and other servers reach this one (default: the listen address, or the address of "+
			"the default route)",
	)
	setType(f, "advertise-address", "ip")
}

// typedValue is a flag value with the type that the help text prints. TextVar prints none.
type typedValue struct {
	pflag.Value
	typeName string
}

// Type returns the placeholder for the help text.
func (v typedValue) Type() string { return v.typeName }

func setType(f *pflag.FlagSet, name, typeName string) {
	flag := f.Lookup(name)
	flag.Value = typedValue{flag.Value, typeName}
}

// deprecatedFlags are former spellings of flags, and flags without effect. They are accepted for one release.
type deprecatedFlags struct {
	flags      *pflag.FlagSet
	names, off []string
}

// deprecatedServeFlags contains the advice for each deprecated flag of serve.
var deprecatedServeFlags = map[string]string{
	"name": "use --tls-san", "off": "use --controllers='*,-NAME'",
	"listen": "use --bind-address and --secure-port", "debug": "use -v=4",
	"services-routed": "it has no effect: pods always get the ClusterIP of default/kubernetes",
}

func (d *deprecatedFlags) addTo(f *pflag.FlagSet, c *control.Config, verbosity *int) {
	d.flags = f
	f.StringSliceVar(&d.names, "name", nil, "")
	f.StringSliceVar(&d.off, "off", nil, "")
	f.StringVar(&c.Listen, "listen", c.Listen, "")
	f.BoolFunc("debug", "", func(text string) error {
		on, err := strconv.ParseBool(text)
		if on {
			*verbosity = max(*verbosity, debugVerbosity)
		}
		return err
	})
	f.Bool("services-routed", false, "")
	for name, usage := range deprecatedServeFlags {
		if err := f.MarkDeprecated(name, usage); err != nil {
			panic(err) // the flag is defined above
		}
	}
}

func (d *deprecatedFlags) applyTo(c *control.Config) {
	d.flags.Visit(func(f *pflag.Flag) {
		if advice := deprecatedServeFlags[f.Name]; advice != "" {
			c.Log.Warn("flag deprecated", "flag", f.Name, "advice", advice)
		}
	})
	c.TLSSANs = append(c.TLSSANs, d.names...)
	if len(d.off) > 0 {
		c.Controllers = control.DisableControllers(c.Controllers, d.off...)
	}
}

// addFormerFlag adds a deprecated former spelling of a flag, which is accepted for one release.
func addFormerFlag(f *pflag.FlagSet, former, name string) {
	f.Var(f.Lookup(name).Value, former, "")
	if err := f.MarkDeprecated(former, "use --"+name); err != nil {
		panic(err) // the flag is defined above
	}
}
