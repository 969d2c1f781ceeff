package kafka_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/kafka"
	"github.com/meterplex/meterplex/infra/local/localkafka"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/pipetest"
	"github.com/meterplex/meterplex/internal/tier"
)

// securedBroker is a broker on which ACLs bound the rights of a user, with the topics of the registry under p.
type securedBroker struct {
	*testing.T
	cfg      kafka.Config // of the user, with SCRAM-SHA-512 over TLS
	operator kafka.Config // has all rights
	admin    *kadm.Client // has all rights
	log      *lockedBuffer
	broker   *localkafka.Broker
	ca       *localtest.CA // of the broker and of its clients
}

type lockedBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.String()
}

// Reset empties the buffer.
func (b *lockedBuffer) Reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.Buffer.Reset()
}

func newSecuredBroker(t *testing.T) *securedBroker {
	b := &securedBroker{T: t, log: &lockedBuffer{}, ca: localtest.NewCA(t, "the authority")}
	certificate := b.ca.Sign(t, "broker", time.Hour, "127.0.0.1")
	var err error
	b.broker, err = localkafka.Start(t.Context(), localkafka.Config{DataDir: localtest.Folder(t),
		Users: map[string]string{"meter": password},
		TLS:   &localkafka.TLS{Certificate: certificate.Cert, Key: certificate.Key, ClientCA: b.ca.PEM}})
	must.OK(t, err)
	t.Cleanup(func() {
		if err := b.broker.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	// A busy machine takes longer than the default for the operator's records, which are published once.
	b.operator = kafka.Config{Brokers: b.broker.Brokers(), TopicPrefix: "p.", Logger: logger(), DeliveryTimeout: time.Minute}
	must.OK(t, newAdmin(t, b.operator).Ensure(t.Context()))
	b.admin = clientOf(t, b.broker.Brokers())
	b.setPassword(password)
	b.cfg = kafka.Config{Brokers: b.broker.SecuredBrokers(), TopicPrefix: "p.", Logger: b.logger(), DeliveryTimeout: 10 * time.Second,
		TLS: b.trusting(b.ca), SASL: kafka.SASL{Mechanism: "SCRAM-SHA-512", Username: "meter", Password: password}}
	return b
}

func (b *securedBroker) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(b.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// acl is one permission of docs/how-to/kafka-access.md.
type acl struct {
	group     bool
	operation kadm.ACLOperation
}

// allow replaces the ACLs of the user.
func (b *securedBroker) allow(list ...acl) {
	b.Helper()
	if _, err := b.admin.DeleteACLs(b.Context(), kadm.NewACLs().AnyResource().Allow("User:meter").AllowHosts("*").Operations().
		ResourcePatternType(kadm.ACLPatternAny)); err != nil {
		b.Fatal(err)
	}
	want := 0
	for _, one := range list {
		builder := kadm.NewACLs().Allow("User:meter").AllowHosts("*").ResourcePatternType(kadm.ACLPatternPrefixed).Operations(one.operation)
		if one.group {
			builder.Groups("p.meterplex-")
		} else {
			builder.Topics("p.usage.", "p.meterplex.")
		}
		want += 1
		if !one.group {
			want += 1
		}
		created, err := b.admin.CreateACLs(b.Context(), builder)
		must.OK(b, err)
		for _, c := range created {
			if c.Err != nil {
				b.Fatal(c.Err, c.ErrMessage)
			}
		}
	}
	must.Until(b, "the broker knows the ACLs", func() bool { // it learns of them from the controller
		known := 0
		described, err := b.admin.DescribeACLs(b.Context(), kadm.NewACLs().AnyResource().Allow("User:meter").AllowHosts("*").Operations().
			ResourcePatternType(kadm.ACLPatternAny))
		for _, d := range described {
			known += len(d.Described)
		}
		return err == nil && known == want
	})
}

// use calls the broker as an instance does, and returns the first error.
func (b *securedBroker) use(what string) error {
	ctx, cancel := context.WithTimeout(b.Context(), testTimeout)
	defer cancel()
	admin, err := kafka.NewAdmin(b.cfg)
	if err != nil {
		return err
	}
	defer admin.Close()
	switch what {
	case "topics":
		return admin.Ensure(ctx)
	case "settings":
		_, err = admin.Doubts(ctx)
	case "last records":
		_, err = admin.LastRecords(ctx)
	case "lag":
		_, err = admin.Lag(ctx, events.GroupValidator)
	case "rewind":
		_, err = admin.Rewind(ctx, events.GroupValidator, "usage.raw", -1)
	case "publish", "publish low rate":
		pub := newPublisher(b, b.cfg)
		defer pub.Close()
		topic := map[bool]events.Topic{true: events.TopicUsageRaw, false: events.TopicCommands}[what == "publish"]
		return pipetest.Publish(ctx, pub, pipetest.Make(topic, 0, 1))
	case "read", "read low rate":
		return b.read(ctx, what == "read")
	}
	return err
}

// read reads one record in a consumer group, and returns the first error that is logged instead.
func (b *securedBroker) read(ctx context.Context, batches bool) error {
	var sub message.Subscriber
	var err error
	sc, topic := kafka.SubscriberConfig{Config: b.cfg, Group: events.GroupCommands}, events.TopicCommands.Name()
	if batches {
		sc.Group, topic = events.GroupValidator, events.TopicUsageRaw.Name()
		sub, err = kafka.NewSubscriber(sc)
	} else {
		sub, err = kafka.NewLowRateSubscriber(sc)
	}
	if err != nil {
		return err
	}
	defer sub.Close()
	messages, err := sub.Subscribe(ctx, topic)
	if err != nil {
		return err
	}
	return b.await(ctx, messages)
}

// await waits for a message, or for an error in the log.
func (b *securedBroker) await(ctx context.Context, messages <-chan *message.Message) error {
	for begin := len(b.log.String()); ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
		select {
		case msg := <-messages:
			msg.Ack()
			return nil
		default:
		}
		if said := b.log.String()[begin:]; strings.Contains(said, "needs the ACL") || strings.Contains(said, "KAFKA_") {
			return errors.New(said)
		}
	}
	return fmt.Errorf("%w: %s", ctx.Err(), b.log.String())
}

// One broker with TLS, SCRAM, certificates of clients and ACLs serves all of these tests: a broker costs seconds.
func TestSecuredBroker(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	b := newSecuredBroker(t)
	for _, one := range []struct {
		name string
		test func(*testing.T, *securedBroker)
	}{
		{"BothClientsWorkWithEachLogin", bothClientsWorkWithEachLogin},
		{"TheErrorNamesTheSetting", theErrorNamesTheSetting},
		{"TheErrorNamesTheMissingACL", theErrorNamesTheMissingACL},
	} {
		t.Run(one.name, func(t *testing.T) {
			own := *b
			own.T = t
			own.allow(everything()...)
			one.test(t, &own)
		})
	}
}

// An instance works with exactly the ACLs of docs/how-to/kafka-access.md. Without one of them, the first request that needs it is
// refused with an error that names the ACL.
func theErrorNamesTheMissingACL(t *testing.T, b *securedBroker) {
	describe, read, write, configs := acl{false, kadm.OpDescribe}, acl{false, kadm.OpRead}, acl{false, kadm.OpWrite},
		acl{false, kadm.OpDescribeConfigs}
	group := acl{true, kadm.OpRead}
	operator := newPublisher(t, b.operator)
	defer operator.Close()
	for _, c := range []struct {
		what  string
		needs []acl
		named string // in the error without the last of needs
	}{
		{"topics", []acl{describe}, "the login needs the ACL Describe on the topics p.usage.… and p.meterplex.…"},
		{"publish", []acl{write}, "the login needs the ACL Write on the topic p.usage.raw"},
		{"publish low rate", []acl{write}, "the login needs the ACL Write on the topic p.meterplex.commands"},
		{"last records", []acl{describe, read}, "the login needs the ACL Read on the topics p.usage.… and p.meterplex.…"},
		{"settings", []acl{describe, configs}, "the login needs the ACL DescribeConfigs on the topics p.usage.… and p.meterplex.…"},
		{"read", []acl{read, group}, "the login needs the ACL Read on the topic p.usage.raw and the group p.meterplex-usage-validator"},
		{"read", []acl{group, read}, "the login needs the ACL Read on the topic p.usage.raw and the group p.meterplex-usage-validator"},
		{"read low rate", []acl{read, group}, "the login needs the ACL Read on the group p.meterplex-command-handler and its topic"},
		{"lag", []acl{read, group}, "the login needs the ACL Describe on the group p.meterplex-usage-validator"},
		{"rewind", []acl{read, group}, "the login needs the ACL Describe on the group p.meterplex-usage-validator"},
	} {
		for _, topic := range []events.Topic{events.TopicUsageRaw, events.TopicCommands} { // for those that read
			must.OK(t, pipetest.Publish(t.Context(), operator, pipetest.Make(topic, 0, 1)))
		}
		b.allow(c.needs[:len(c.needs)-1]...)
		if err := b.use(c.what); err == nil || !strings.Contains(err.Error(), c.named) ||
			!strings.Contains(err.Error(), "docs/how-to/kafka-access.md") {
			t.Errorf("%s without %v: %v instead of %q", c.what, c.needs[len(c.needs)-1], err, c.named)
		}
		b.allow(c.needs...)
		// a new group's coordinator may not be there yet
		must.Until(t, c.what+" with its ACLs", func() bool { return b.use(c.what) == nil })
	}
}
