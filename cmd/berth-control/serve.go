package main

import (
	"context"
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
	c := control.Default()
	var file string
	var verbose bool
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the control server",
		Long: `Run the control server until it is told to end (SIGTERM or SIGINT).

The first start makes, in the data directory: a certificate authority and what it signs (pki/), a key by which secrets are
encrypted in the store (pki/encryption.yaml), the store (etcd/), and a kubeconfig for you (admin.kubeconfig). Later starts go
on with them. Certificates are renewed before they expire, and at the next start when the server was off for too long.

  kubectl --kubeconfig /var/lib/berth-control/admin.kubeconfig get nodes

A configuration file says what flags say; a flag wins:

  apiVersion: ` + control.ConfigFileAPIVersion + `
  kind: ` + control.ConfigFileKind + `
  dataDir: /var/lib/berth-control
  listen: "[::]:6443"
  names: [control.example.com]      # further names and addresses for the server's certificate
  podRanges: [10.42.0.0/16]         # each node gets a part of it for its pods
  nodeMonitorGracePeriod: 40s       # silence after which a node is held for lost
  serviceRanges: [10.43.0.0/16]     # addresses of services
  advertiseAddress: 192.0.2.1       # by which pods reach the server
  off: []                           # parts that something else does: ` + strings.Join(control.ControllerNames(), ", ") + `
  etcd:                             # a cluster of your own in place of the store in the data directory
    servers: [https://10.0.0.1:2379]
    caFile: /etc/etcd/ca.crt
    certFile: /etc/etcd/client.crt
    keyFile: /etc/etcd/client.key`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file != "" {
				f, err := control.ReadConfigFile(file)
				if err != nil {
					return err
				}
				f.ApplyTo(&c, cmd.Flags().Changed)
			}
			c.Version = version
			c.Log = newLog(verbose)
			// The API server's library says READY when it listens, which is before it answers.
			manager, err := systemd.ClaimNotifySocket()
			if err != nil {
				return err
			}
			server, err := control.New(cmd.Context(), c)
			if err != nil {
				return err
			}
			// What only the start needs is given back when it is over, and collecting
			// early saves a sixth of the memory.
			ctx, stop := context.WithCancel(cmd.Context())
			var lean sync.WaitGroup
			lean.Go(func() {
				node.TrimMemory(ctx, server.Ready(), func(err error) { c.Log.Debug("give memory back", "error", err) })
			})
			var told sync.WaitGroup
			told.Go(func() { notify(ctx, manager, server, c) })
			defer lean.Wait()
			defer told.Wait()
			defer stop()
			return server.Run(cmd.Context())
		},
	}
	serveFlags(cmd.Flags(), &c)
	cmd.Flags().StringVar(&file, "config", "", "configuration file")
	cmd.Flags().BoolVar(&verbose, "debug", false, "log what is for debugging too")
	return cmd
}

// notify tells systemd when the server answers everything, its store included,
// as long as it answers, and when it ends.
func notify(ctx context.Context, manager systemd.Notifier, server *control.Server, c control.Config) {
	tell := func(states ...systemd.State) {
		if err := manager.Notify(states...); err != nil {
			c.Log.Warn("service manager", "error", err)
		}
	}
	tell(systemd.Status("opens its store"))
	select {
	case <-ctx.Done():
		return
	case <-server.Ready():
	}
	tell(systemd.Ready, systemd.Status("serves the API on "+c.Listen))
	runWatchdog(ctx, manager, server.CheckLiveness, c.Log)
	<-ctx.Done()
	tell(systemd.Stopping)
}

func serveFlags(f *pflag.FlagSet, c *control.Config) {
	f.StringVar(&c.DataDir, "data-dir", c.DataDir, "directory of the store, the certificates and admin.kubeconfig; made at the first start")
	f.StringVar(&c.Listen, "listen", c.Listen, "ADDRESS:PORT of the API; port 0 takes a free one")
	f.StringSliceVar(&c.TLSSANs, "name", nil, "further DNS name or IP address by which clients reach the server, for its certificate")
	f.StringSliceVar(&c.Etcd.Endpoints, "etcd-servers", nil, "URLs of an etcd cluster to keep objects in, in place of the store in the data directory")
	f.StringVar(&c.Etcd.CAFile, "etcd-cafile", "", "certificate authority of the etcd cluster")
	f.StringVar(&c.Etcd.CertFile, "etcd-certfile", "", "client certificate for the etcd cluster")
	f.StringVar(&c.Etcd.KeyFile, "etcd-keyfile", "", "key of the client certificate for the etcd cluster")
	f.StringVar(&c.EncryptionConfig, "encryption-provider-config", "", "file of kind EncryptionConfiguration, in place of DATA-DIR/pki/encryption.yaml")
	f.StringVar(&c.ServiceAccountIssuer, "service-account-issuer", c.ServiceAccountIssuer, "URL that service account tokens name as their maker")
	f.DurationVar(&c.MaxTokenExpiration, "service-account-max-token-expiration", 0, "the most that a service account token is good for, whatever is asked; nodes renew those of pods at 80% of it; 0 is no limit")
	f.BoolVar(&c.ExtendTokenExpiration, "service-account-extend-token-expiration", c.ExtendTokenExpiration, "make the tokens that pods get by themselves good for a year, or the most there is, for programs that read theirs once; nodes renew them hourly all the same, and they end with the pod")
	f.StringSliceVar(&c.DisabledAdmissionPlugins, "disable-admission-plugins", nil, "admission plugins that shall not run: "+strings.Join(admission.Names(), ", "))
	f.Var(&cidrList{&c.ClusterCIDRs}, "cluster-cidr", "range of pod addresses, of which each node gets a part (/24, IPv6 /64); one per family, empty for none")
	f.DurationVar(&c.NodeMonitorGracePeriod, "node-monitor-grace-period", c.NodeMonitorGracePeriod, "silence after which a node is held for lost; nodes report each quarter of their lease, every 10s")
	f.DurationVar(&c.EventTTL, "event-ttl", c.EventTTL, "how long events are kept")
	f.DurationVar(&c.EtcdCompactionInterval, "etcd-compaction-interval", c.EtcdCompactionInterval, "how long the past of objects is kept, for watches that resume and lists in pages; older is dropped")
	f.DurationVar(&c.EtcdDefragmentationInterval, "etcd-defragmentation-interval", c.EtcdDefragmentationInterval, "how often the server's own store is looked at; when half of its file and 64 MiB are unused, they are given back to the file system")
	f.DurationVar(&c.OwnCertificateDuration, "own-certificate-duration", c.OwnCertificateDuration, "how long the server's own certificates are good, and that in admin.kubeconfig; they are renewed when a third of it is left")
	f.DurationVar(&c.ClusterSigningDuration, "cluster-signing-duration", c.ClusterSigningDuration, "how long certificates are good at most that the server signs for nodes, which renew them by themselves, and for others that ask")
	f.DurationVar(&c.NodeReturnPeriod, "node-return-period", c.NodeReturnPeriod, "how long after the end of its certificate a node that was off may ask for another with its old key; 0: it has to join anew")
	f.Var(&cidrList{&c.ServiceCIDRs}, "service-cluster-ip-range", "range of service addresses; one, or one per family of which the first is the usual one")
	f.TextVar(&c.ServiceNodePorts, "service-node-port-range", c.ServiceNodePorts, "ports of the nodes that services can have")
	f.BoolVar(&c.ServicesRouted, "services-routed", false, "something (kube-proxy) routes services' addresses on the nodes: pods get the address of default/kubernetes in place of the server's own")
	f.TextVar(&c.AdvertiseAddress, "advertise-address", c.AdvertiseAddress, "IP address by which pods and other servers reach this one; by default the one that it listens on, or of this host's default route")
	f.StringSliceVar(&c.Off, "off", nil, "parts that shall not run, because something else does their work: "+strings.Join(control.ControllerNames(), ", "))
}
