// The realtime module of OpenAI's own client, by its environment variables. MESSAGES: prints one line of JSON.
import OpenAI from 'openai';
import { OpenAIRealtimeWS } from 'openai/realtime/ws';

const [said] = process.argv.slice(2);
const talk = await OpenAIRealtimeWS.create(new OpenAI(), { model: 'default' });
const events = [];
talk.on('event', (event) => events.push(event.type));

// Every kind of event has a listener, or its promise: an error ends this program.
const next = (type) => new Promise((resolve) => talk.on(type, resolve));
let text = '';
talk.on('response.output_text.delta', (event) => (text += event.delta));

const done = next('response.done');
await next('session.created');
const updated = next('session.updated');
talk.send({ type: 'session.update', session: { type: 'realtime', output_modalities: ['text'], temperature: 0 } });
const { session } = await updated;
for (const { role, content } of JSON.parse(said)) {
  const type = role === 'assistant' ? 'output_text' : 'input_text';
  talk.send({ type: 'conversation.item.create', item: { type: 'message', role, content: [{ type, text: content }] } });
}
talk.send({ type: 'response.create', response: { max_output_tokens: 12 } });
const { response } = await done;

const refused = new Promise((resolve) => talk.on('error', ({ error }) => resolve([error.code, error.param])));
talk.send({ type: 'session.update', session: { type: 'realtime', temperature: 'hot' } });

console.log(
  JSON.stringify({
    modalities: session.output_modalities,
    text,
    whole: response.output[0].content[0].text,
    status: response.status,
    tokens: response.usage.output_tokens,
    refused: await refused,
    events: [...new Set(events)],
  }),
);
talk.close();
