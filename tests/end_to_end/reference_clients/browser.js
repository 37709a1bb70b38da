// Using browser WebSocket API
const socket = new WebSocket('wss://example.com/generate');
let generatedText = '';

socket.onopen = () => {
  // Send configuration message
  socket.send(JSON.stringify({
    type: 'config',
    prompt: 'Write a short story about a robot learning to paint.',
    parameters: {
      max_tokens: 200,
      temperature: 0.7
    },
    options: {
      stream: true
    }
  }));
};

socket.onmessage = (event) => {
  const message = JSON.parse(event.data);
  
  switch (message.type) {
    case 'init':
      console.log(`Generation started with ID: ${message.request_id}`);
      break;
      
    case 'token':
      // Display token in UI
      generatedText += message.token;
      document.getElementById('output').textContent = generatedText;
      break;
      
    case 'completion':
      console.log('Generation complete:', message.generated_text);
      // Update UI with final text and stats
      document.getElementById('stats').textContent = 
        `Tokens: ${message.usage.total_tokens}, Reason: ${message.finish_reason}`;
      break;
      
    case 'error':
      console.error('Error:', message.message);
      // Show error in UI
      document.getElementById('error').textContent = message.message;
      
      // Implement recovery if possible
      if (message.recoverable && message.recovery_action === 'retry') {
        setTimeout(() => {
          // Retry with reduced parameters
          socket.send(JSON.stringify({
            type: 'config',
            prompt: 'Write a short story about a robot learning to paint.',
            parameters: {
              max_tokens: 100,  // Reduced
              temperature: 0.7
            },
            options: {
              stream: true
            }
          }));
        }, 1000);
      }
      break;
      
    case 'status':
      // Update UI with status
      document.getElementById('status').textContent = 
        `${message.operation}: ${message.progress}% - ${message.message}`;
      break;
  }
};

// Function to stop generation
function stopGeneration() {
  socket.send(JSON.stringify({
    type: 'control',
    action: 'stop'
  }));
}

// Function to adjust parameters
function increaseRandomness() {
  socket.send(JSON.stringify({
    type: 'control',
    action: 'modify',
    parameters: {
      temperature: 0.9
    }
  }));
}
